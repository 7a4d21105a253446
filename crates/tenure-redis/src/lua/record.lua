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
-- Nothing if the text is none of ours: then another client holds the key.
local function unpack_hold(text)
  if #text > HOLD_BYTES_MAX then return nil end
  local id, flag, token, granted, ttl, client, longest, shortest, delay, weight, slot, label = text:match(HOLD)
  if not id or #id ~= 32 or #token ~= 16 or #granted ~= 16 or #ttl ~= 8 or #client > 16 then return nil end
  if max(#longest, #shortest, #delay) > 15 or max(#weight, #slot) > 7 then return nil end
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
  if not ttl then return nil end
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
  if hold.id == REST then
    call('HSET', record.key, token, pack(hold))
  else
    call('HSET', record.key, token, pack(hold), hold.id, token)
  end
  call('ZADD', record.ends, hold.ends, token)
  call('ZADD', record.holds, hold.token, token)
  record.keep = max(record.keep, hold.ends + delay_of(hold))
end

-- The hold with a token, nothing if it is not there. One whose end somebody has deleted may have been renewed just now.
local function hold_with(record, token, ends)
  local text = call('HGET', record.key, token)
  local hold = text and unpack_hold(text)
  if not hold then return nil end
  hold.ends = tonumber(ends or call('ZSCORE', record.ends, token) or t + max(hold.ttl, hold.min, hold.delay))
  return hold
end

local function hold_of(record, id)
  if record.kind == 'm' then return record.hold and record.hold.id == id and record.hold or nil end
  local token = record.kind and call('HGET', record.key, id)
  return token and hold_with(record, token) or nil
end

-- Makes the keys beside a hash agree with it again. They are deleted, evicted and restored one by one, and what stays
-- must neither be lost nor let anybody in: a hold without an end gets the latest that its holder may believe in.
local function mend_holds(record)
  local holds, used = {}, 0
  local function look(token)
    if holds[token] ~= nil then return end
    local text = call('HGET', record.key, token)
    holds[token] = text and unpack_hold(text) or false
    if holds[token] then used = used + holds[token].weight end
  end
  for _, key in ipairs({ record.ends, record.holds }) do
    for _, token in ipairs(call('ZRANGE', key, 0, -1)) do look(token) end
  end
  if used ~= record.used then
    -- Both are gone, or hold only a part.
    local fields = try('HGETALL', record.key)
    if fields.err then error('it lost what tells when its holds end, and the user may not HGETALL to mend it') end
    for at = 1, #fields, 2 do
      if fields[at]:match('^%d+$') and #fields[at] == 16 then look(fields[at]) end
    end
  end
  for token, hold in pairs(holds) do
    if hold then
      local life = hold.id == REST and max(hold.min, hold.delay) or hold.ttl
      local ends = t + life
      if hold.id ~= REST and hold.max > 0 then ends = min(ends, floor(hold.granted / 1000) + hold.max) end
      call('ZADD', record.ends, 'NX', ends, token)
      call('ZADD', record.holds, 'NX', hold.token, token)
      record.keep = max(record.keep, ends + delay_of(hold))
    else
      call('ZREM', record.ends, token)
      call('ZREM', record.holds, token)
    end
  end
  record.used = used
end

-- The hold that ends first; `by`: only if it ends by then.
local function next_hold_to_end(record, by)
  if record.kind == 'm' then
    local hold = record.hold
    if hold and by and (rawget(hold, 'ends') or NEVER) > by then return nil end
    return hold
  end
  local first = record.kind and call('ZRANGE', record.ends, 0, 0, 'WITHSCORES') or {}
  if not first[1] or (by and tonumber(first[2]) > by) then return nil end
  local hold = hold_with(record, first[1], first[2])
  if hold then return hold end
  mend_holds(record)
  return next_hold_to_end(record, by)
end

-- A resource whose key is not there is of the kind that its waiters have asked for.
local function be_as_awaited(record)
  record.kind, record.capacity = 'm', 1
  local wanted = record.waiting > 0 and call('HGET', record.waiters, 'kind')
  if not wanted then return end
  local kind, capacity = wanted:match('^([rsp]) (%d+)$')
  if kind then record.kind, record.capacity, record.is_gone = kind, tonumber(capacity), true end
end

local function free(record, hold)
  record.used = max(record.used - hold.weight, 0)
  if record.kind == 'm' then
    call('DEL', record.key)
    record.hold = nil
    if hold.id == FOREIGN then
      be_as_awaited(record)
      if record.is_gone then call('DEL', record.ends, record.holds, record.free) end
    end
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

-- Keeps the value until then. In the last millisecond Redis would delete it at once, so it stays for one more, and is not shown.
local function keep_value(record, ends) call('PEXPIREAT', record.value, max(ends - 1, t + 1)) end

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

local function take_waiter(record, id)
  if call('ZREM', record.places, id) == 1 then record.waiting = record.waiting - 1 end
  call('ZREM', record.lives, id)
  call('HDEL', record.waiters, id)
  forget_queue(record)
end

-- A waiter is stored as a digit, whether a fresh value answers it as well, and its terms. Nothing if they are gone.
local function waiter_of(record, id)
  local text = call('HGET', record.waiters, id)
  return text and unpack_party(id, sub(text, 3)) or nil
end

local function is_dead(record, id) return tonumber(call('ZSCORE', record.lives, id) or 0) <= t end

-- Whoever is at the head now does not know it yet.
local function wake_head(record)
  local head = record.waiting > 0 and call('ZRANGE', record.places, 0, 0)[1]
  local waiter = head and not is_dead(record, head) and waiter_of(record, head)
  if waiter then wake({ id = head, client = waiter.client }) end
end

-- Removes a waiter that leaves without a grant.
local function remove_waiter(record, id)
  local was_head = call('ZRANK', record.places, id) == 0
  take_waiter(record, id)
  if was_head then wake_head(record) end
end

-- Removes waiters that leave without a grant in a few commands.
local function remove_waiters(record, ids)
  local head = call('ZRANGE', record.places, 0, 0)[1]
  record.waiting = record.waiting - call('ZREM', record.places, unpack(ids))
  call('ZREM', record.lives, unpack(ids))
  call('HDEL', record.waiters, unpack(ids))
  forget_queue(record)
  if record.waiting > 0 and not call('ZSCORE', record.places, head) then wake_head(record) end
end

-- Removes those of whom nothing was heard, not too many of them at once.
local function prune(record)
  local dead = call('ZRANGEBYSCORE', record.lives, '-inf', t, 'LIMIT', 0, PRUNED_MAX)
  record.has_dead = #dead == PRUNED_MAX
  if dead[1] then remove_waiters(record, dead) end
end

local function fits(record, weight) return record.used + weight <= record.capacity end

-- What is free of the slots that have been granted before, if the list of them is gone.
local function refill_slots(record)
  local held = {}
  for _, token in ipairs(call('ZRANGE', record.holds, 0, -1)) do
    local hold = hold_with(record, token)
    if hold then held[hold.slot] = true end
  end
  for slot = 0, min(record.fresh, record.capacity) - 1 do
    if not held[digits(slot)] then call('RPUSH', record.free, slot) end
  end
end

local function grant(record, party, above, is_confirmed)
  last_token()
  if is_last_lost and record.kind ~= 'm' then
    -- A token names a hold, so those that are there count although the last one was forgotten.
    above = max(above, tonumber(call('ZRANGE', record.holds, -1, -1)[1] or 0))
  end
  local token = next_token(above)
  record.used = record.used + party.weight
  local slot = '-'
  if record.kind == 'p' then
    if record.fresh < record.capacity then
      slot = digits(record.fresh)
      record.fresh = record.fresh + 1
    else
      slot = call('LPOP', record.free)
      if not slot then
        refill_slots(record)
        slot = call('LPOP', record.free)
      end
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

-- Who waits finds its place forgotten, and queues anew.
local function forget_line(record)
  record.waiting = 0
  forget_queue(record)
end

-- What the line of this record is for, as it is stored there. That of a mutex says nothing.
local function awaited(record) return record.kind ~= 'm' and record.kind .. ' ' .. digits(record.capacity) end

-- Grants from the head of the queue for as long as it fits.
local function grant_waiters(record)
  -- Nobody has a weight below 1.
  while record.waiting > 0 and fits(record, 1) do
    if last_token() >= TOKEN_MAX then return end
    local head = call('ZRANGE', record.places, 0, 0)[1]
    local stored = call('HMGET', record.waiters, head, 'kind')
    -- The keys were deleted that say what was claimed and that some wait for it, and somebody has claimed another kind since:
    -- as units of that one, two of those who wait would hold a mutex.
    if stored[2] ~= awaited(record) then return forget_line(record) end
    local waiter = stored[1] and unpack_party(head, sub(stored[1], 3))
    if waiter and not fits(record, waiter.weight) then return end
    -- It waits for the next request to remove it, and so do those behind it.
    if record.has_dead and is_dead(record, head) then return end
    take_waiter(record, head)
    -- One that asked again while nothing said that it waits may have been granted then: it is not to hold twice.
    if waiter and (record.kind == 'm' or call('HEXISTS', record.key, head) == 0) then
      local hold = grant(record, waiter, 0, false)
      -- The same call may yet confirm it; the wake says what it was at first.
      wake({ id = head, client = waiter.client, hold = hold, record = record, ends = hold.ends })
    end
  end
end

-- A line of which a part is gone is gone.
local function mend_line(record)
  if record.waiting > 0 and call('EXISTS', record.waiters, record.lives) < 2 then forget_line(record) end
end

-- What belongs together is looked at before anything is decided by it.
local function mend(record)
  if record.kind and record.kind ~= 'm' then
    if record.is_gone then
      -- Its holds ended with it.
      call('DEL', record.ends, record.holds, record.free)
      record.is_gone = false
    else
      local ends = call('ZCARD', record.ends)
      if ends ~= call('ZCARD', record.holds) or (ends == 0) ~= (record.used == 0) then mend_holds(record) end
    end
  end
  mend_line(record)
end

local function settle(record)
  mend(record)
  local hold = next_hold_to_end(record, t)
  while hold do
    end_hold(record, hold, hold.ends + delay_of(hold))
    hold = next_hold_to_end(record, t)
  end
  if record.waiting > 0 then
    prune(record)
    grant_waiters(record)
  end
end

-- The end of a mutex, which is the expiry of its key. Nobody asks but for the head of the queue.
local ENDS = {
  __index = function(hold, name)
    if name ~= 'ends' then return nil end
    local ends = call('PEXPIRETIME', hold.key)
    hold.ends = ends < 0 and NEVER or ends + 1 - delay_of(hold)
    return hold.ends
  end,
}

-- A hash is ours if it has all that each of ours has.
local function is_count(text) return text and #text < 17 and not text:find('%D') and text ~= '' end
local function is_ours(head)
  return (head[1] == 'r' or head[1] == 's' or head[1] == 'p')
    and is_count(head[2]) and is_count(head[3]) and is_count(head[4]) and is_count(head[5])
end

-- Reads a record; `text` is what its key holds, if that is known. `is_bad`: that is of this type, and neither this
-- nor any classic lock has written it. `waits`: somebody is known to wait, whatever the shared keys say.
local function read(key, text, waits)
  local record = setmetatable({ key = key, places = queue_of(key), used = 0, fresh = 0, keep = 0, keep_until = 0, waiting = 0 }, BESIDE)
  if has_queues or waits then record.waiting = call('ZCARD', record.places) end
  if text == nil then text = text_of(key) end
  if type(text) == 'string' then
    local hold = unpack_hold(text)
      or { id = FOREIGN, flag = '+', token = 0, granted = now, client = '0', max = 0, min = 0, delay = 0, weight = 1,
           slot = '-', ttl = 0, label = sub(text, 1, 256) }
    hold.key = key
    setmetatable(hold, ENDS)
    -- A key that is there has not ended, but its hold may have, and then it rests.
    local _ = delay_of(hold) > 0 and hold.ends
    record.kind, record.capacity, record.used, record.hold = 'm', 1, 1, hold
    return record
  end
  local kind = text and call('TYPE', key).ok or 'none'
  if kind == 'hash' then
    local head = call('HMGET', key, 'kind', 'capacity', 'used', 'fresh', 'until')
    if is_ours(head) then
      record.kind, record.capacity, record.used = head[1], tonumber(head[2]), tonumber(head[3])
      record.fresh, record.keep_until = tonumber(head[4]), tonumber(head[5])
      record.as_read = concat(head, ' ', 1, 4)
    else
      record.is_bad = kind
    end
  elseif kind ~= 'none' then
    record.is_bad = kind
  elseif record.waiting > 0 then
    be_as_awaited(record)
  end
  return record
end

local function is_idle(record) return record.used == 0 and record.waiting == 0 end

-- An idle record takes another kind; what is left of the former goes, also where its key went before.
local function become(record, kind, capacity)
  if record.kind == kind and record.capacity == capacity then return end
  if kind ~= 'm' or (record.kind and record.kind ~= 'm') then
    call('DEL', record.key, record.ends, record.holds, record.free)
  end
  record.kind, record.capacity, record.fresh, record.used, record.hold = kind, capacity, 0, 0, nil
  record.keep_until = 0
end

local function write(record)
  if has_observers and call('ZSCORE', OBSERVED, record.key) then
    changed = changed or {}
    changed[record.key] = true
  end
  if not record.kind or record.kind == 'm' then return end
  if record.keep == 0 and record.as_read and record.keep_until > t + TOKEN_MEMORY / 2
    and record.as_read == concat({ record.kind, digits(record.capacity), digits(record.used), digits(record.fresh) }, ' ') then
    return
  end
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
  -- The dead are not all removed, and somebody must go on.
  if record.has_dead then look = 0 end
  return { 'W', rank + 1, digits(last_token()), look }
end

-- Keeps the place of a waiter, and returns it, 0 for the head; nothing if it is not in line.
local function keep_place(record, id)
  local rank = call('ZRANK', record.places, id)
  local waiter = rank and waiter_of(record, id)
  if waiter then
    call('ZADD', record.lives, 'GT', t + min(waiter.ttl, WAITER_LIFE_MAX), id)
    return rank
  elseif rank then
    take_waiter(record, id)
  end
end

-- Extends a hold, or keeps the place of a waiter and returns it; nothing if the claim is neither.
local function renew_existing(record, id)
  local hold = hold_of(record, id)
  if hold then
    if wakes then
      confirmed = confirmed or {}
      confirmed[id] = true
    end
    hold.ends = bounded(hold, t + hold.ttl)
    local expiry = hold.ends + hold.delay - 1
    if record.kind == 'm' then
      -- In its last millisecond its end is what it was, and Redis would delete it now.
      if expiry > t then call('PEXPIREAT', record.key, expiry) end
    else
      call('ZADD', record.ends, hold.ends, padded(hold.token))
      record.keep = max(record.keep, expiry)
    end
    if has_value(record, hold) then keep_value(record, hold.ends) end
    return hold
  end
  if record.waiting > 0 then return nil, keep_place(record, id) end
end

-- The keys of a queue live on for as long as somebody in it is heard of. `is_new`: nobody stood in it before.
local function keep_queue(record, is_new)
  local until_when = not is_new and has_queues and call('ZSCORE', QUEUES, record.key)
  if until_when and tonumber(until_when) - t >= QUEUE_LIFE / 2 then return end
  for _, key in ipairs({ record.places, record.waiters, record.lives }) do call('PEXPIRE', key, QUEUE_LIFE) end
  call('ZREMRANGEBYSCORE', QUEUES, '-inf', t)
  call('ZADD', QUEUES, t + QUEUE_LIFE, record.key)
  call('PEXPIRE', QUEUES, 2 * QUEUE_LIFE)
  has_queues, is_all_quiet = true, false
end

-- Cuts the window of a grant of which nobody hears: its waiter is probably dead, but may be reconnecting. What this
-- call has confirmed is not cut, for it has promised a whole ttl; nor what others hold by now. So it looks again. A value that
-- the same call has published under it goes with it.
local function cut_window(woken)
  local record, hold, is_cut = woken.record, nil, nil
  local ends = t + UNHEARD_WINDOW
  if ends >= woken.ends or (confirmed and confirmed[woken.id]) then return end
  local text = text_of(record.key)
  if type(text) == 'string' then
    hold = unpack_hold(text)
    if hold and hold.id == woken.id and hold.token == woken.token then
      is_cut = call('PEXPIREAT', record.key, ends + hold.delay - 1) == 1
    end
  elseif text then
    local token = padded(woken.token)
    is_cut = call('HGET', record.key, woken.id) == token
    if is_cut then call('ZADD', record.ends, 'XX', ends, token) end
  end
  if is_cut and has_value(record, { flag = 'v', token = woken.token }) then
    keep_value(record, ends)
  end
end

-- Ends a call: tells who waits and who watches, after everything else, for to a channel that is not here it would
-- fail.
local function tell()
  if is_last_new then call('SET', LAST, digits(last), 'PX', TOKEN_MEMORY) end
  for _, woken in ipairs(wakes or {}) do
    local hold, text = woken.hold, nil
    if hold then
      woken.token = hold.token
      text = concat({ 'G', woken.id, digits(hold.token), hold.slot, woken.ends - t, INCARNATION }, ' ')
    else
      text = 'L ' .. woken.id
    end
    local heard = try(PUBLISH, 'tenure.1.inbox:' .. TAG .. woken.client, text)
    if hold and heard == 0 then pcall(cut_window, woken) end
  end
  for key in pairs(changed or {}) do try(PUBLISH, 'tenure.1.changes:' .. TAG .. key, '') end
end
