-- The record of a resource in Redis, and its transitions. The text of `step` in Lua; `script/tests.rs` compares the
-- two. It stands behind `common.lua`.

-- A hold as it is stored: fixed columns up to the client, so that the common case needs no parsing.
local function pack(hold)
  return concat({
    hold.id, hold.flag, padded(hold.token), padded(hold.granted), format('%08.0f', hold.ttl), hold.client,
    digits(hold.max), digits(hold.min), digits(hold.delay), hold.weight, hold.slot, hold.label,
  }, ' ')
end

local HOLD = '^([%x%-]+) ([-+v]) (%d+) (%d+) (%d+) (%x+) (%d+) (%d+) (%d+) (%d+) ([%d-]+) (.*)$'
local function unpack_hold(text)
  local id, flag, token, granted, ttl, client, longest, shortest, delay, weight, slot, label = text:match(HOLD)
  if not id or #id ~= 32 then return nil end
  return {
    id = id, flag = flag, token = tonumber(token), granted = tonumber(granted), ttl = tonumber(ttl), client = client,
    max = tonumber(longest), min = tonumber(shortest), delay = tonumber(delay), weight = tonumber(weight),
    slot = slot, label = label,
  }
end

-- What a claim asks for, as the client sends it, as it waits and as the last columns of its hold.
local PARTY = '^(%d+) (%x+) (%d+) (%d+) (%d+) (%d+) %- (.*)$'
local function unpack_party(id, text)
  local ttl, client, longest, shortest, delay, weight, label = text:match(PARTY)
  return {
    id = id, client = client, weight = tonumber(weight), ttl = tonumber(ttl), max = tonumber(longest),
    min = tonumber(shortest), delay = tonumber(delay), label = label,
  }
end

-- The moment until which renewal may put the end of a hold off.
local function bounded(hold, ends)
  if hold.max > 0 then return min(ends, floor(hold.granted / 1000) + hold.max) end
  return ends
end
-- How long the units rest after the end of a hold that nobody released.
local function delay_of(hold) return hold.id == REST and 0 or hold.delay end

local function wake(woken)
  wakes = wakes or {}
  wakes[#wakes + 1] = woken
end

-- The keys beside that of a record, each named when it is first needed.
local LETTERS = { waiters = 'w', lives = 'x', ends = 'e', holds = 'h', free = 's', value = 'v' }
local BESIDE = {
  __index = function(record, name)
    local letter = LETTERS[name]
    if not letter then return nil end
    local key = 'tenure.1.' .. letter .. ':' .. TAG .. record.key
    record[name] = key
    return key
  end,
}

-- Redis still shows a key in the millisecond in which it ends, so each is made to end one earlier.
local function put_hold(record, hold)
  if record.kind == 'm' then
    record.hold = hold
    call('SET', record.key, pack(hold), 'PXAT', hold.ends + delay_of(hold) - 1)
    return
  end
  local token = padded(hold.token)
  call('HSET', record.key, token, pack(hold))
  if hold.id ~= REST then call('HSET', record.key, hold.id, token) end
  call('ZADD', record.ends, hold.ends, token)
  call('ZADD', record.holds, hold.token, token)
  record.keep = max(record.keep, hold.ends + delay_of(hold))
end

local function hold_with(record, token, ends)
  local hold = unpack_hold(call('HGET', record.key, token))
  hold.ends = tonumber(ends or call('ZSCORE', record.ends, token))
  return hold
end

local function hold_of(record, id)
  if record.kind == 'm' then return record.hold and record.hold.id == id and record.hold or nil end
  local token = record.kind and call('HGET', record.key, id)
  return token and hold_with(record, token) or nil
end

local function next_hold_to_end(record)
  if record.kind == 'm' then return record.hold end
  local first = record.kind and call('ZRANGE', record.ends, 0, 0, 'WITHSCORES') or {}
  return first[1] and hold_with(record, first[1], first[2]) or nil
end

local function free(record, hold)
  record.used = record.used - hold.weight
  if record.kind == 'm' then
    call('DEL', record.key)
    record.hold = nil
    return
  end
  local token = padded(hold.token)
  call('HDEL', record.key, token)
  call('ZREM', record.ends, token)
  call('ZREM', record.holds, token)
  if hold.slot ~= '-' and tonumber(hold.slot) < record.capacity then
    call('RPUSH', record.free, hold.slot)
  end
end

-- Whether the value goes with this hold; another may have been published since.
local function has_value(record, hold)
  if hold.flag ~= 'v' then return false end
  local value = call('HMGET', record.value, 'token', 'keep')
  return value[2] == '' and tonumber(value[1]) == hold.token
end

-- Ends a hold: its units rest until then, or come free if they have rested already.
local function end_hold(record, hold, rest_until)
  if hold.id == REST or hold.id == FOREIGN then return free(record, hold) end
  if record.kind ~= 'm' then call('HDEL', record.key, hold.id) end
  if has_value(record, hold) then call('DEL', record.value) end
  if rest_until > min(t, hold.ends) then
    hold.id, hold.ends = REST, rest_until
    return put_hold(record, hold)
  end
  free(record, hold)
end

local function forget_queue(record)
  if record.waiting == 0 then
    call('DEL', record.places, record.waiters, record.lives)
    call('ZREM', QUEUES, record.key)
  end
end

local function take_waiter(record, id, is_popped)
  if not is_popped then call('ZREM', record.places, id) end
  call('ZREM', record.lives, id)
  call('HDEL', record.waiters, id)
  record.waiting = record.waiting - 1
  forget_queue(record)
end

-- A waiter is stored as a digit, whether a fresh value answers it as well, and its terms.
local function waiter_of(record, id) return unpack_party(id, sub(call('HGET', record.waiters, id), 3)) end

-- Removes a waiter that leaves without a grant. Whoever is at the head now does not know it yet.
local function remove_waiter(record, id)
  local was_head = call('ZRANK', record.places, id) == 0
  take_waiter(record, id)
  local head = was_head and record.waiting > 0 and call('ZRANGE', record.places, 0, 0)[1]
  if head then wake({ id = head, client = waiter_of(record, head).client }) end
end

local function fits(record, weight) return record.used + weight <= record.capacity end

local function grant(record, party, above, is_confirmed)
  local token = next_token(above)
  record.used = record.used + party.weight
  local slot = '-'
  if record.kind == 'p' then
    if record.fresh < record.capacity then
      slot = digits(record.fresh)
      record.fresh = record.fresh + 1
    else
      slot = call('LPOP', record.free)
    end
  end
  local hold = {
    id = party.id, token = token, granted = now, ttl = party.ttl, client = party.client, max = party.max,
    min = party.min, delay = party.delay, weight = party.weight, slot = slot, label = party.label,
    flag = (party.max + party.min + party.delay > 0) and '+' or '-',
  }
  hold.ends = bounded(hold, t + (is_confirmed and hold.ttl or min(hold.ttl, CONFIRM_WINDOW_MAX)))
  put_hold(record, hold)
  return hold
end

-- Grants from the head of the queue for as long as it fits.
local function grant_waiters(record)
  -- Nobody has a weight below 1.
  while record.waiting > 0 and fits(record, 1) do
    if last_token() >= TOKEN_MAX then return end
    -- Where everybody weighs 1, the head fits.
    local is_popped = record.kind == 'm' or record.kind == 'p'
    local head = is_popped and call('ZPOPMIN', record.places)[1] or call('ZRANGE', record.places, 0, 0)[1]
    local waiter = waiter_of(record, head)
    if not fits(record, waiter.weight) then return end
    take_waiter(record, head, is_popped)
    local hold = grant(record, waiter, 0, false)
    -- The same call may yet confirm it; the wake says what it was at first.
    wake({ id = head, client = waiter.client, hold = hold, record = record, ends_in = hold.ends - t })
  end
end

local function settle(record)
  local hold = next_hold_to_end(record)
  while hold and hold.ends <= t do
    end_hold(record, hold, hold.ends + delay_of(hold))
    hold = next_hold_to_end(record)
  end
  if record.waiting > 0 then
    for _, id in ipairs(call('ZRANGEBYSCORE', record.lives, '-inf', t)) do remove_waiter(record, id) end
    grant_waiters(record)
  end
end

-- Reads a record; `text` is the value of its key, if that is known to be a string. `is_bad`: the key holds
-- something that neither this nor any classic lock has written.
local function read(key, text)
  local record = setmetatable({ key = key, places = queue_of(key), used = 0, fresh = 0, keep = 0, keep_until = 0, waiting = 0 }, BESIDE)
  if has_queues then record.waiting = call('ZCARD', record.places) end
  local kind = 'string'
  if not text then
    text = try('GET', key)
    if type(text) ~= 'string' then kind = text and call('TYPE', key).ok or 'none' end
  end
  if kind == 'string' then
    local ends = call('PEXPIRETIME', key)
    local hold = unpack_hold(text)
      or { id = FOREIGN, flag = '+', token = 0, granted = now, client = '0', max = 0, min = 0, delay = 0, weight = 1,
           slot = '-', ttl = 0, label = sub(text, 1, 256) }
    hold.ends = ends < 0 and NEVER or ends + 1 - delay_of(hold)
    record.kind, record.capacity, record.used, record.hold = 'm', 1, 1, hold
  elseif kind == 'hash' then
    local head = call('HMGET', key, 'kind', 'capacity', 'used', 'fresh', 'until')
    record.is_bad = not head[1]
    record.kind, record.capacity, record.used = head[1], tonumber(head[2]), tonumber(head[3] or 0)
    record.fresh, record.keep_until = tonumber(head[4] or 0), tonumber(head[5] or 0)
  elseif kind ~= 'none' then
    record.is_bad = true
  elseif record.waiting > 0 then
    record.kind, record.capacity = 'm', 1
  end
  return record
end

local function is_idle(record) return record.used == 0 and record.waiting == 0 end

-- An idle record takes another kind; what is left of the former goes.
local function become(record, kind, capacity)
  if record.kind == kind and record.capacity == capacity then return end
  if record.kind then call('DEL', record.key, record.ends, record.holds, record.free) end
  record.kind, record.capacity, record.fresh, record.used, record.hold = kind, capacity, 0, 0, nil
  record.keep_until = 0
end

local function write(record)
  if has_observers and call('ZSCORE', OBSERVED, record.key) then
    changed = changed or {}
    changed[record.key] = true
  end
  if not record.kind or record.kind == 'm' then return end
  -- Which slot has been free longest is worth remembering; all else of an idle record is not.
  if is_idle(record) and record.fresh == 0 then
    call('DEL', record.key, record.free)
    return
  end
  local expiry = max(record.keep, t + WAITER_LIFE_MAX) + TOKEN_MEMORY
  expiry = max(expiry, record.keep_until)
  call('HSET', record.key, 'kind', record.kind, 'capacity', record.capacity, 'used', record.used,
    'fresh', record.fresh, 'until', digits(expiry))
  -- The others come and go with their last entry, and their expiry with them.
  for _, key in ipairs({ record.key, record.ends, record.holds, record.free }) do
    call('PEXPIREAT', key, expiry)
  end
end

local function grant_answer(hold)
  return { 'G', digits(hold.token), hold.slot, hold.ends - t }
end

local function waiting_answer(record, id, rank)
  local hold = rank == 0 and next_hold_to_end(record)
  local look = hold and hold.ends < NEVER and hold.ends - t or -1
  return { 'W', rank + 1, digits(last_token()), look }
end

-- Extends a hold, or keeps the place of a waiter and returns it, 0 for the head; nothing if the claim is neither.
local function renew_existing(record, id)
  local hold = hold_of(record, id)
  if hold then
    hold.ends = bounded(hold, t + hold.ttl)
    local expiry = hold.ends + hold.delay - 1
    if record.kind == 'm' then
      call('PEXPIREAT', record.key, expiry)
    else
      call('ZADD', record.ends, hold.ends, padded(hold.token))
      record.keep = max(record.keep, expiry)
    end
    if has_value(record, hold) then call('PEXPIREAT', record.value, hold.ends - 1) end
    return hold
  end
  local rank = record.waiting > 0 and call('ZRANK', record.places, id)
  if rank then
    local life = t + min(waiter_of(record, id).ttl, WAITER_LIFE_MAX)
    call('ZADD', record.lives, 'GT', life, id)
    return nil, rank
  end
end

-- The keys of a queue live on for as long as somebody in it is heard of.
local function keep_queue(record)
  if call('PTTL', record.places) >= QUEUE_LIFE / 2 then return end
  for _, key in ipairs({ record.places, record.waiters, record.lives }) do call('PEXPIRE', key, QUEUE_LIFE) end
  call('ZREMRANGEBYSCORE', QUEUES, '-inf', t)
  call('ZADD', QUEUES, t + QUEUE_LIFE, record.key)
  call('PEXPIRE', QUEUES, 2 * QUEUE_LIFE)
  has_queues, is_all_quiet = true, false
end

-- Cuts the window of a grant of which nobody hears: its waiter is probably dead, but may be reconnecting.
local function cut_window(woken)
  local ends = t + UNHEARD_WINDOW
  local hold, record = woken.hold, woken.record
  if ends >= hold.ends or not hold_of(record, hold.id) then return end
  if record.kind == 'm' then
    call('PEXPIREAT', record.key, ends + hold.delay - 1)
  else
    call('ZADD', record.ends, 'XX', ends, padded(hold.token))
  end
end

-- Ends a call: tells who waits and who watches, after everything else, for to a channel that is not here it would
-- fail.
local function tell()
  if is_last_new then call('SET', LAST, digits(last), 'PX', TOKEN_MEMORY) end
  for _, woken in ipairs(wakes or {}) do
    local hold, text = woken.hold, nil
    if hold then
      text = concat({ 'G', woken.id, digits(hold.token), hold.slot, woken.ends_in, INCARNATION }, ' ')
    else
      text = 'L ' .. woken.id
    end
    local heard = try(PUBLISH, 'tenure.1.inbox:' .. TAG .. woken.client, text)
    if hold and heard == 0 then cut_window(woken) end
  end
  for key in pairs(changed or {}) do try(PUBLISH, 'tenure.1.changes:' .. TAG .. key, '') end
end
