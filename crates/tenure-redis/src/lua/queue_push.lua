-- Puts items in line. Takes for each: the group, empty for none; for how long it is held back; its dedup id, empty for none; its
-- context, empty for none; the payload. Answers each with its number, or with that of the one that was pushed before, as text.

-- Forgets the ids whose time is over and whose items are gone: more than are added.
local function forget_dedups(most)
  for _, id in ipairs(call('ZRANGEBYSCORE', DEDUP_ENDS, '-inf', now_text, 'LIMIT', 0, most)) do
    local number = call('HGET', DEDUPS, id)
    if number and call('HEXISTS', ITEMS, number) == 1 then
      call('ZADD', DEDUP_ENDS, padded(now + DEDUP_MEMORY), id)
    else
      call('HDEL', DEDUPS, id)
      call('ZREM', DEDUP_ENDS, id)
    end
  end
end

-- The number of what was pushed under an id that is remembered; else remembers what is to be pushed.
local function pushed_before(id)
  local number = has_dedups and call('HGET', DEDUPS, id)
  if number and (tonumber(call('ZSCORE', DEDUP_ENDS, id) or 0) > now or call('HEXISTS', ITEMS, number) == 1) then
    return number
  end
  has_dedups = true
  call('HSET', DEDUPS, id, padded(max(last_item + 1, now)))
  call('ZADD', DEDUP_ENDS, padded(now + DEDUP_MEMORY), id)
  call('PERSIST', DEDUPS)
  call('PERSIST', DEDUP_ENDS)
end

operation('push', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local count = (#ARGV - 3) / 5
  if has_dedups then forget_dedups(2 * count) end
  local lanes = {}
  for i = 4, #ARGV, 5 do
    if ARGV[i] ~= '' then lanes[#lanes + 1] = ':' .. ARGV[i] end
  end
  local has_items = {}
  if lanes[1] then
    for at, state in ipairs(call('HMGET', STATES, unpack(lanes))) do has_items[lanes[at]] = state end
  end
  local answers, contexts = { now_text }, 0
  read_book()
  for i = 1, count do
    local at = 5 * i - 1
    local group, dedup = ARGV[at], ARGV[at + 2]
    local before = dedup ~= '' and pushed_before(dedup)
    if before then
      answers[i + 1] = before
    else
      local number = next_item()
      local lane = group == '' and number or ':' .. group
      local delay = ARGV[at + 1]
      local due, due_text = now, now_text
      if delay ~= '0' then
        due = now + tonumber(delay)
        due_text = padded(due)
      end
      enter(lane, has_items[lane], number, due, now_text .. due_text .. group .. TAB .. ARGV[at + 4])
      local context = ARGV[at + 3]
      if context ~= '' then
        add_context(number, context)
        contexts, contexts_due = contexts + 1, max(contexts_due, due)
      else
        -- A number comes again if the server's clock is set back after all else was forgotten.
        forget_context(number)
      end
      has_items[lane] = true
      answers[i + 1] = last_item
    end
    end_request()
  end
  if contexts > 0 then
    flush()
    sweep_contexts(2 * contexts)
  end
  finish()
  return answers
end)
