-- Looks at resources and writes nothing: for each its kind, capacity, units in use, waiting, the holds as they are stored
-- with their ends, the waiters with their terms, and the value. Takes: how many holds and waiters to list.

local function look(key, most)
  local record = read(key)
  if record.is_bad then return false end
  local value = call('HMGET', record.value, 'bytes', 'token', 'keep')
  if not record.kind and not value[1] then return false end
  local holds = {}
  if record.kind == 'm' and record.hold then
    holds = { record.hold.id == FOREIGN and record.hold.label or pack(record.hold), digits(record.hold.ends) }
  elseif record.kind and record.kind ~= 'm' then
    for _, token in ipairs(call('ZRANGE', record.holds, 0, most)) do
      local hold = hold_with(record, token)
      if hold then
        holds[#holds + 1] = pack(hold)
        holds[#holds + 1] = digits(hold.ends)
      end
    end
  end
  local waiters = {}
  for _, id in ipairs(record.waiting > 0 and call('ZRANGE', record.places, 0, most) or {}) do
    local terms = call('HGET', record.waiters, id)
    if terms and waiter_of(record, id) then
      waiters[#waiters + 1] = id
      waiters[#waiters + 1] = sub(terms, 3)
      waiters[#waiters + 1] = digits(call('ZSCORE', record.lives, id) or NEVER / 1000)
    end
  end
  return {
    record.kind or 'm', record.capacity or 1, record.used, record.waiting, holds, waiters,
    { value[1] or '', value[2] or '', value[3] or '' },
  }
end

operation('look', { 'no-writes' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local answers = { padded(now), digits(last_token()) }
  for i = 5, #KEYS do answers[i - 2] = look(KEYS[i], tonumber(ARGV[4]) - 1) end
  return answers
end)
