-- Extends holds, confirms grants and keeps the places of waiters. Takes the id of each, and then for each run of
-- alike ones: how many, and whether the client believes that they wait. A number answers a holder: how long the hold
-- lives, 0 if there is none.

local function decide(record, id, is_waiter)
  local hold, waits = renew_existing(record, id)
  if waits then
    keep_queue(record)
    return waiting_answer(record, id, waits)
  end
  if not hold then return 0 end
  return is_waiter and grant_answer(hold) or hold.ends - t
end

-- By key: what this call has settled, and found others waiting behind. No renewal frees anything, so those that come
-- later in the same call need not look at the rest again.
local settled

local function uncommon(key, id, is_waiter, held)
  local before = is_waiter and settled[key]
  if before then
    local rank = keep_place(before, id)
    if rank and rank > 0 then return waiting_answer(before, id, rank) end
  end
  local record = read(key, held, is_waiter)
  if record.is_bad then return 0 end
  settle(record)
  local answer = decide(record, id, is_waiter)
  grant_waiters(record)
  write(record)
  if is_waiter and record.waiting > 1 then
    settled[key] = record
    -- One of them goes on with the dead.
    record.has_dead = false
  end
  return answer
end

operation('renew', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local answers = { padded(now) }
  settled = {}
  -- The ttl of the last hold, as text, as a number, and what it makes the end.
  local ttl_text, ttl, ends
  local i, run = 0, #KEYS
  while i < #KEYS - 4 do
    local is_waiter = ARGV[run + 1] == '1'
    for _ = 1, tonumber(ARGV[run]) do
      i = i + 1
      local key, id = KEYS[i + 4], ARGV[i + 3]
      local held
      if not is_waiter then held = try('GET', key) end
      local text = type(held) == 'string' and is_plain(held, id) and sub(held, 70, 77)
      if text and text ~= ttl_text then
        ttl_text, ttl = text, tonumber(text)
        ends = ttl and digits(t + ttl - 1)
      end
      -- The common case: a mutex without anything special.
      if text and ttl then
        call('PEXPIREAT', key, ends)
        if wakes then
          confirmed = confirmed or {}
          confirmed[id] = true
        end
        answers[i + 1] = ttl
      else
        local answer, fault = guard(uncommon, key, id, is_waiter, held)
        if fault then
          tell()
          return fault
        end
        answers[i + 1] = answer
      end
    end
    run = run + 2
  end
  tell()
  return answers
end)
