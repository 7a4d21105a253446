-- Grants, queues or refuses claims. Takes the id of each, and then for each run of alike ones:
--   how many; "kind capacity wait forced fresh"; the floor, empty if each has its own; the terms as they are stored;
--   the life of the key in ms if it is a mutex without anything special, else 0; then their floors, if they differ.

local function parse(id, options, terms)
  local claim = unpack_party(id, terms)
  local kind, capacity, wait, forced, fresh = options:match('^(%a) (%d+) (%d) (%d) (%d)$')
  claim.kind, claim.capacity, claim.wait = kind, tonumber(capacity), wait == '1'
  claim.forced, claim.fresh, claim.terms = forced == '1', fresh, terms
  return claim
end

local function busy(record)
  local first = next_hold_to_end(record)
  local free_in = first and first.ends < NEVER and max(first.ends + delay_of(first) - t, 0) or -1
  local shown = record.hold
  if record.kind ~= 'm' then
    for _, token in ipairs(call('ZRANGE', record.holds, 0, HOLDERS_LOOKED_AT_MAX - 1)) do
      local hold = hold_with(record, token)
      if not shown or (hold and shown.id == REST and hold.id ~= REST) then shown = hold end
    end
  end
  local answer = { 'B', digits(last_token()), record.waiting, free_in }
  if shown then
    answer[5], answer[6] = digits(shown.token), max(floor((now - shown.granted) / 1000), 0)
    answer[7], answer[8] = shown.id == REST and 1 or 0, shown.label
  end
  return answer
end

local function enqueue(record, claim, above)
  if above > last_token() then last, is_last_new = above, true end
  -- Somebody may have deleted what says that there is a queue, and more of it: in a half of a line the dead would never end.
  if not has_queues then
    record.waiting = call('ZCARD', record.places)
    mend_line(record)
  end
  -- All in a line wait for the same (`grant_waiters`).
  if record.waiting > 0 and call('HGET', record.waiters, 'kind') ~= awaited(record) then forget_line(record) end
  local is_new = record.waiting == 0
  if is_new then call('DEL', record.waiters, record.lives) end
  local place = call('HINCRBY', record.waiters, 'n', 1)
  call('ZADD', record.places, place, claim.id)
  call('ZADD', record.lives, t + min(claim.ttl, WAITER_LIFE_MAX), claim.id)
  call('HSET', record.waiters, claim.id, claim.fresh .. ' ' .. claim.terms)
  -- What they wait for, should the key of the resource be deleted.
  if is_new and record.kind ~= 'm' then call('HSET', record.waiters, 'kind', awaited(record)) end
  record.waiting = record.waiting + 1
  keep_queue(record, is_new)
  return waiting_answer(record, claim.id, record.waiting - 1)
end

-- Who claims again by another client is told by that one of its grant.
local function hear(record, claim)
  local text = call('HGET', record.waiters, claim.id)
  local told = text:gsub('^(%d %d+) %x+', '%1 ' .. claim.client, 1)
  if told ~= text then call('HSET', record.waiters, claim.id, told) end
end

local function decide(record, claim, above)
  if is_finished(claim.id) then return { 'F' } end
  local hold, waits = renew_existing(record, claim.id)
  if hold then return grant_answer(hold) end
  if waits then
    hear(record, claim)
    return waiting_answer(record, claim.id, waits)
  end
  local is_alike = record.kind == claim.kind and record.capacity == claim.capacity
  if not is_alike and not is_idle(record) then return { 'C', record.kind, record.capacity } end
  if claim.weight < 1 or claim.weight > claim.capacity then return { 'I' } end
  if above > now + FLOOR_AHEAD_MAX and not claim.forced then return { 'A' } end
  if max(last_token(), above) >= TOKEN_MAX then return { 'T' } end
  if claim.fresh == '1' then
    local value = call('HMGET', record.value, 'fresh', 'token', 'bytes')
    if value[1] and tonumber(value[1]) > t then
      return { 'V', tonumber(value[1]) - t, value[2], value[3] }
    end
  end
  become(record, claim.kind, claim.capacity)
  if record.waiting == 0 and fits(record, claim.weight) then
    return grant_answer(grant(record, claim, above, true))
  end
  if not claim.wait then return busy(record) end
  if record.waiting >= WAITERS_MAX then return { 'Q' } end
  return enqueue(record, claim, above)
end

local function uncommon(key, id, options, above, terms, held)
  local record = read(key, held)
  if record.is_bad then return { 'X', record.is_bad } end
  settle(record)
  local answer = decide(record, parse(id, options, terms), above)
  grant_waiters(record)
  write(record)
  return answer
end

operation('claim', {}, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  local now_text = padded(now)
  local answers = { now_text }

  -- The runs begin behind the ids, which begin behind the three arguments of every script.
  local i, run = 0, #KEYS
  while i < #KEYS - 4 do
    local count, options, shared = tonumber(ARGV[run]), ARGV[run + 1], tonumber(ARGV[run + 2])
    local terms, life = ARGV[run + 3], tonumber(ARGV[run + 4])
    local ends, tail = digits(t + life - 1), ' ' .. now_text .. ' ' .. terms
    for at = 1, count do
      i = i + 1
      local key, id, above = KEYS[i + 4], ARGV[i + 3], shared or tonumber(ARGV[run + 4 + at])
      local answer, held
      -- The common case: a mutex without anything special. If it is free, one command takes it.
      if life > 0 and above <= now and (is_all_quiet or is_quiet(key, id)) and last_token() < now + FLOOR_AHEAD_MAX then
        local token = max(last + 1, now, above + 1)
        local text = padded(token)
        held = try('SET', key, id .. ' - ' .. text .. tail, 'NX', 'GET', 'PXAT', ends)
        if not held then
          last, is_last_new, answer = token, true, token
        elseif type(held) ~= 'string' then
          -- Another kind of resource; any other refusal is the server's own.
          if sub(held.err, 1, 9) ~= 'WRONGTYPE' then
            -- What the batch has granted so far stays.
            tell()
            return held
          end
        end
      end
      if not answer then
        local fault
        answer, fault = guard(uncommon, key, id, options, above, terms, held)
        if fault then
          tell()
          return fault
        end
      end
      answers[i + 1] = answer
    end
    run = run + 5 + (shared and 0 or count)
  end
  tell()
  return answers
end)
