-- Looks at resources and writes nothing: for each its kind, capacity, units in use, waiting, the holds as they are stored
-- with their ends, the waiters with their terms, and the value. A mutex that is held and has nothing else is only its kind, its
-- hold and its end; one that cannot be read is `E` and why. Takes: how many holds and waiters to list.
--
-- It answers with the first of the resources only when their values are many bytes: all beyond would block the server.

local BYTES_MAX = 1048576

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

-- How long the text of a hold is at most that is worth a glance.
local GLANCE_MAX = 512

-- How many of the resources have a queue or a value.
local function count_beside(KEYS, from, to)
  local beside = {}
  for i = from, to do
    beside[#beside + 1] = 'tenure.1.v:' .. TAG .. KEYS[i]
    -- Where nothing has a queue, there is nothing to ask for.
    if has_queues then beside[#beside + 1] = queue_of(KEYS[i]) end
  end
  return beside[1] and call('EXISTS', unpack(beside)) or 0
end

-- What most resources are, at a tenth of what it costs to read a record: `id - …`, and nothing beside it.
local function glance(key)
  local text = try('GETRANGE', key, 0, GLANCE_MAX)
  if type(text) ~= 'string' or #text > GLANCE_MAX or sub(text, 33, 35) ~= ' - ' then return nil end
  local ends = call('PEXPIRETIME', key)
  return { 'm', text, ends < 0 and digits(NEVER) or ends + 1 }
end

operation('look', { 'no-writes' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local answers, bytes = { padded(now), digits(last_token()) }, 0
  local are_bare = count_beside(KEYS, 5, #KEYS) == 0
  for i = 5, #KEYS do
    if bytes > BYTES_MAX then break end
    local seen = (are_bare or count_beside(KEYS, i, i) == 0) and glance(KEYS[i])
    if not seen then
      local is_read, what = pcall(look, KEYS[i], tonumber(ARGV[4]) - 1)
      seen = what
      if not is_read then seen = { 'E', type(what) == 'table' and what.err or tostring(what) } end
      if seen and seen[7] then bytes = bytes + #seen[7][1] end
    end
    answers[i - 2] = seen
  end
  return answers
end)
