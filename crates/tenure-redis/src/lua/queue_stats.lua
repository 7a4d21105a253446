-- Counts what is in a queue and writes nothing: how many items there are, how many of them are with a consumer, how many
-- dead letters, and after how long something can be taken, -1: nothing waits but behind what is in flight.

operation('stats', { 'no-writes' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  read_book()
  local first = call('ZRANGE', LANES, 0, 0, 'WITHSCORES')
  local ready = first[1] and max(max(tonumber(first[2]), rests_until) - now, 0) or -1
  return { now_text, call('ZCARD', NUMBERS), call('HLEN', CLAIMS), call('ZCARD', DEAD), ready }
end)
