-- Lists items and writes nothing. Takes: `d` for dead letters or `l` for the others, after which number, how many at most.
-- Answers for each its number, its context (empty: none) and what is stored of it: a dead letter alone; else the value, the state of its
-- lane (empty: none) and since when that is ready, -1 if another item comes first.

-- After how many bytes a page is long enough.
local BYTES_MAX = 1048576

operation('items', { 'no-writes' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local is_dead = ARGV[4] == 'd'
  local numbers = call('ZRANGEBYSCORE', is_dead and DEAD or NUMBERS, '(' .. ARGV[5], '+inf', 'LIMIT', 0, ARGV[6])
  local answers, bytes = { now_text }, 0
  for _, number in ipairs(numbers) do
    if bytes >= BYTES_MAX then break end
    local value = call('HGET', is_dead and LETTERS or ITEMS, number)
    local context = value and has_contexts and call('HGET', CONTEXTS, number) or ''
    if value and is_dead then
      answers[#answers + 1] = { number, context, value }
    elseif value then
      local lane = lane_of(number, value)
      local state = states_of({ lane })[1] or ''
      local is_first = not is_group(lane) or sub(state, 1, 16) == number
      local ready = is_first and tonumber(call('ZSCORE', LANES, member_of(lane, number)) or -1) or -1
      answers[#answers + 1] = { number, context, value, is_first and state or '', ready }
    end
    bytes = bytes + #(value or '')
  end
  return answers
end)
