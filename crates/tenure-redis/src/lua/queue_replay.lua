-- Puts dead letters in line again, the oldest first. Takes: the number of one, empty for any; how many at most. Answers how
-- many were.

operation('replay', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local numbers = { ARGV[4] }
  if ARGV[4] == '' then numbers = call('ZRANGE', DEAD, 0, tonumber(ARGV[5]) - 1) end
  local count = 0
  for _, dead in ipairs(numbers) do
    local letter = call('HGET', LETTERS, dead)
    call('ZREM', DEAD, dead)
    if letter then
      call('HDEL', LETTERS, dead)
      local value = sub(letter, 30 + tonumber(sub(letter, 27, 29)))
      -- What cannot be read any more is put in line as it is, for people to look at.
      if not find(value, TAB, 33, true) or find(sub(value, 1, 32), '%D') then value = now_text .. now_text .. TAB .. value end
      local number = next_item()
      local context = has_contexts and call('HGET', CONTEXTS, dead)
      if context then
        forget_context(dead)
        add_context(number, context)
      end
      local lane = lane_of(number, value)
      local is_behind = is_group(lane) and call('HEXISTS', STATES, lane) == 1
      enter(lane, is_behind, number, now, sub(value, 1, 16) .. now_text .. sub(value, 33))
      flush()
      count = count + 1
    end
  end
  finish()
  return { now_text, count }
end)
