-- Hands out what is ready. Takes, for each consumer: its client, the ttl, the kind of interval (- q g) and its period, after how
-- many attempts an item is dead (0: never), the floor, the label, how many claims there are, and the claims. Answers each with
-- after how long to look again (-1: not asked for, -2: the tokens are used up), and then five for each item: its number,
-- attempt, token, context (empty: none) and value.

-- How many lanes are looked at in one step, how many values are read at once, after how many bytes a call has answered
-- enough, and how many items it buries: a call must not block the server for long.
local STEP, READ_AT_ONCE, BYTES_MAX, BURIED_MAX = 32, 4, 1048576, 32
-- How much later than the one before it each of the idle looks when something is due, in case that one is dead; and how many do.
local STANDBY, TURNS = 250000, 20
local WORN_OUT = 'every delivery ended without an answer'
local DAMAGED = 'it is not as it was pushed: somebody has changed it in the server'
-- A floor that is further ahead of the clock comes from a clock that is wrong. Up to TOKEN_MAX a double counts exactly.
local FLOOR_AHEAD_MAX, TOKEN_MAX = 3600000000, 9007199254740991

-- What a call has left: bytes to answer with or to bury, and items to bury.
local bytes_left, burials_left

-- Whether a value is that of an item of this lane, in the form in which it was pushed.
local function is_item(lane, value)
  local tab = find(value, TAB, 33, true)
  return tab and not find(sub(value, 1, 32), '%D') and sub(value, 33, tab - 1) == sub(is_group(lane) and lane or ':', 2)
end

-- Hands out some of what is ready. Returns how many were, and whether there may be more.
local function hand_out(rules, claims, given, answer)
  local want = min(#claims - given, STEP)
  if rules.interval == 'q' and rules.period > 0 then want = 1 end
  local members = call('ZRANGEBYSCORE', LANES, '-inf', now_text, 'LIMIT', 0, want)
  if not members[1] then return 0, false end
  local firsts, lanes = {}, {}
  for at, member in ipairs(members) do
    firsts[at] = sub(member, 1, 16)
    lanes[at] = member == firsts[at] and member or sub(member, 17)
  end
  local states, values, contexts = states_of(lanes), {}, {}
  local count, written = 0, 5 * given + 1
  for at, first in ipairs(firsts) do
    if bytes_left <= 0 or last_token >= TOKEN_MAX then break end
    local lane, state = lanes[at], states[at]
    local attempts, rests, rests_text = 0, 0, ZERO
    if state then
      attempts, rests_text = attempts_of(state), sub(state, 81, 96)
      if rests_text ~= ZERO then rests = tonumber(rests_text) end
      local claim = claim_of(state)
      if claim ~= NOBODY then later(DEL_CLAIMS, claim) end
    end
    local is_worn_out = rules.attempts_max > 0 and attempts >= rules.attempts_max
    if not is_worn_out and values[at] == nil then
      -- A few at a time: they may be large, and no more is to be read than is answered.
      local last = min(at + READ_AT_ONCE, #firsts + 1) - 1
      for behind, value in ipairs(call('HMGET', ITEMS, unpack(firsts, at, last))) do values[at + behind - 1] = value end
      if has_contexts then
        for behind, context in ipairs(call('HMGET', CONTEXTS, unpack(firsts, at, last))) do contexts[at + behind - 1] = context end
      end
    end
    local value = values[at]
    if is_worn_out or not value or not is_item(lane, value) then
      -- Whose turn comes by that may stand before the others.
      flush()
      burials_left = burials_left - 1
      if burials_left >= 0 then
        bytes_left = bytes_left - bury(lane, first, rests, attempts, is_worn_out and WORN_OUT or DAMAGED)
      end
      flush()
      return at - 1, true
    end
    last_token = max(last_token + 1, now, rules.floor + 1)
    local ready, ends_text = rules.ends_text, rules.ends_text
    if rules.interval == 'g' and is_group(lane) then
      rests = now + rules.period
      rests_text = padded(rests)
    end
    if rests > rules.ends then ready = rests_text end
    local claim = claims[given + at]
    later(SET_STATES, lane, first .. ends_text .. claim .. rules.client .. rests_text
      .. format('%010d', attempts + 1) .. rules.ttl_text .. rules.label)
    later(SET_CLAIMS, claim, lane)
    later(SET_LANES, ready, members[at])
    answer[written + 1], answer[written + 2], answer[written + 3], answer[written + 4], answer[written + 5] =
      first, attempts + 1, last_token, contexts[at] or '', value
    written, count = written + 5, at
    bytes_left = bytes_left - #value
  end
  if rules.interval == 'q' and count > 0 then rests_until = now + rules.period end
  flush()
  return count, #firsts == want
end

-- The first of the idle. Who is not heard of any more makes room.
local function first_idle()
  while has_idle do
    local clients, living = call('ZRANGE', IDLE, 0, TURNS - 1), {}
    has_idle = #clients > 0
    if not has_idle then break end
    for at, ends in ipairs(call('HMGET', IDLE_ENDS, unpack(clients))) do
      if tonumber(ends or 0) > now then living[#living + 1] = clients[at] else forget_idle(clients[at]) end
    end
    if #living == #clients then return living end
  end
  return {}
end

-- Takes those off the list whose turn it was to come for what is due, and who have not. They are told once more: one that is only late
-- is idle again then.
local function pass_over(client)
  if not has_idle then return end
  local idle, last = first_idle(), read_watched()
  last = last and floor((now - last - STANDBY / 2) / STANDBY) or -1
  for place = 0, min(last, #idle - 1) do
    local late = idle[place + 1]
    if late ~= client then
      forget_idle(late)
      passed_over[#passed_over + 1] = late
    end
  end
end

-- Notes that a client has asked in vain. Returns after how long it is to look again, -1: it looks by itself.
local function be_idle(client)
  local first, second = idle_at(0), idle_at(1)
  if first ~= client and second ~= client
    and (not has_idle or tonumber(call('HGET', IDLE_ENDS, client) or 0) <= now) then
    local last = call('ZRANGE', IDLE, -1, -1, 'WITHSCORES')[2]
    call('ZADD', IDLE, padded(max(now, tonumber(last or 0) + 1)), client)
    has_idle = true
  end
  call('HSET', IDLE_ENDS, client, padded(now + CONSUMER_LIFE))
  call('PEXPIRE', IDLE, CONSUMER_LIFE / 1000)
  call('PEXPIRE', IDLE_ENDS, CONSUMER_LIFE / 1000)
  for at, one in ipairs(first_idle()) do
    if one == client then
      local place, ready = at - 1, next_ready()
      if place < 2 then
        read_watched()
        watched = ready or false
      end
      return ready and max(ready - now, 0) + STANDBY * place or -1
    end
  end
  return -1
end

-- A client that got all it wanted is not idle. Tells another of what it leaves.
local function be_busy(client)
  forget_idle(client)
  local at = next_ready()
  if at and at <= now then call_one() end
end

operation('take', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  read_book()
  bytes_left, burials_left = BYTES_MAX, BURIED_MAX
  local answers, i = { now_text }, 4
  while ARGV[i] do
    local rules = {
      client = ARGV[i], interval = ARGV[i + 2], period = tonumber(ARGV[i + 3]), attempts_max = tonumber(ARGV[i + 4]),
      floor = tonumber(ARGV[i + 5]), label = ARGV[i + 6],
    }
    local ttl = tonumber(ARGV[i + 1])
    rules.ends = now + ttl
    -- The client that brought a wrong one puts back what it is given with a smaller token.
    if rules.floor > now + FLOOR_AHEAD_MAX then rules.floor = 0 end
    rules.ends_text, rules.ttl_text = padded(rules.ends), padded(ttl)
    local count, claims = tonumber(ARGV[i + 7]), {}
    for at = 1, count do claims[at] = ARGV[i + 7 + at] end
    i = i + 8 + count
    pass_over(rules.client)
    local answer, given = { -1 }, 0
    local more = count > 0
    local function may_go_on() return bytes_left > 0 and burials_left >= 0 and last_token < TOKEN_MAX end
    while more and given < count and rests_until <= now and may_go_on() do
      local some
      some, more = hand_out(rules, claims, given, answer)
      given = given + some
    end
    if given > 0 then is_book_new = true end
    if given == 0 and count > 0 and last_token >= TOKEN_MAX then
      answer[1] = -2
    elseif given < count and not may_go_on() then
      answer[1] = 0
    elseif given < count then
      answer[1] = be_idle(rules.client)
    elseif has_idle then
      be_busy(rules.client)
    end
    end_request()
    answers[#answers + 1] = answer
  end
  finish()
  return answers
end)
