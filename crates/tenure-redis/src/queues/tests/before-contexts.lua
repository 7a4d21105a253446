#!lua name=tenure_queue_1_before
local IS_SCRIPT = false
local function operation(name, flags, run)
  redis.register_function({ function_name = 'tenure_queue_1_before_' .. name, callback = run, flags = flags })
end
-- What every operation on a queue begins with, and what several of them do. The text of `queue::step` in Lua;
-- `queue/tests.rs` compares the two. It is loaded once as a library of functions, as `common.lua` is.
--
-- KEYS: those of one queue, in the order of `keys.rs`. All that is read or written is declared, so that a slot of a
-- cluster that is on its way to another node refuses a call in place of doing half of it.
-- ARGV: the queue's name, the inbox channels up to the client, PUBLISH or SPUBLISH, then what each operation takes.
--
-- A lane is a group that has items (`:` and its name) or an item without a group (its number). It stands in LANES at
-- the moment since which it is ready, under the number of its first item and, for a group, its name: so lanes that became
-- ready at the same moment are in the order of their items. All times are microseconds, numbers and times 16 digits.

-- What Lua and the server give. While a library is loaded they are not there yet.
local call, try
local floor, max, min, sub, byte, find, format
local function open()
  call, try = redis.call, redis.pcall
  floor, max, min = math.floor, math.max, math.min
  sub, byte, find, format = string.sub, string.byte, string.find, string.format
end

local DEDUP_MEMORY, CONSUMER_LIFE, BOOK_LIFE_MS = 300000000, 15000000, 3600000
-- The byte before the name of a group in a lane, and in the values of items the one behind it: names hold no control characters.
local COLON, TAB = 58, '\t'
local ZERO = '0000000000000000'
local NOBODY = '--------------------------------'

-- What belongs to one call.
local NAME, INBOX, PUBLISH
local BOOK, LANES, STATES, NUMBERS, ITEMS, BEHIND, CLAIMS
local RESTS, IDLE, IDLE_ENDS, DEDUPS, DEDUP_ENDS, DEAD, LETTERS
local now, now_text
-- The number of the last item, the last token, and until when the whole queue rests; read when first needed.
local last_item, last_token, rests_until, is_book_new
local has_idle, has_rests, has_dedups
-- What is yet to be written, by command and key; and who is to be told that something is ready.
local pending, targets, called
-- The moment for which the first two of the idle watch: as it is, and as it is stored. Nil: it was not read.
local watched, was_watched

-- A number of microseconds, in 16 digits. Halves are integers on every platform, and printing a float of that size takes several
-- times as long.
local HALF = 100000000
local function padded(number)
  local high = floor(number / HALF)
  return format('%08d%08d', high, number - high * HALF)
end

local function begin(KEYS, ARGV)
  if not call then open() end
  NAME, INBOX, PUBLISH = ARGV[1], ARGV[2], ARGV[3]
  BOOK, LANES, STATES, NUMBERS, ITEMS, BEHIND, CLAIMS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
  RESTS, IDLE, IDLE_ENDS, DEDUPS, DEDUP_ENDS, DEAD, LETTERS =
    KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14]
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  now_text = padded(now)
  last_item, is_book_new = nil, false
  pending, called = {}, {}
  watched, was_watched = nil, nil
  targets = { CLAIMS, STATES, LANES, BEHIND, ITEMS, NUMBERS, STATES, CLAIMS, LANES, BEHIND, ITEMS, NUMBERS }
  local unusual = call('EXISTS', IDLE, RESTS, DEDUPS)
  has_idle, has_rests, has_dedups = false, false, false
  if unusual > 0 then
    has_idle = call('EXISTS', IDLE) == 1
    has_rests = call('EXISTS', RESTS) == 1
    has_dedups = call('EXISTS', DEDUPS) == 1
  end
end

-- A server that is full lets a script through if its first write makes nothing fuller; a function by its flag.
local function insist() if IS_SCRIPT then call('PEXPIRE', BOOK, BOOK_LIFE_MS, 'GT') end end

local function read_book()
  if last_item then return end
  local text = call('GET', BOOK)
  if text then
    last_item, last_token = tonumber(sub(text, 1, 16)) or 0, tonumber(sub(text, 17, 32)) or 0
    rests_until = tonumber(sub(text, 33, 48)) or 0
    return
  end
  -- It has ended, or is new. Items must stay in their order though the clock may have been set back.
  last_item, last_token, rests_until = 0, 0, 0
  for _, numbers in ipairs({ NUMBERS, DEAD }) do
    last_item = max(last_item, tonumber(call('ZRANGE', numbers, -1, -1)[1] or 0))
  end
end

-- What can be written in one command for many items is, at the end: a command costs more than what it does.
local DEL_CLAIMS, DEL_STATES, DEL_LANES, DEL_BEHIND, DEL_ITEMS, DEL_NUMBERS = 1, 2, 3, 4, 5, 6
local SET_STATES, SET_CLAIMS, SET_LANES, SET_BEHIND, SET_ITEMS, SET_NUMBERS = 7, 8, 9, 10, 11, 12
local COMMANDS = { 'HDEL', 'HDEL', 'ZREM', 'ZREM', 'HDEL', 'ZREM', 'HSET', 'HSET', 'ZADD', 'ZADD', 'HSET', 'ZADD' }
local function later(what, one, other)
  local list = pending[what]
  if not list then
    list = { COMMANDS[what], targets[what] }
    pending[what] = list
  end
  local count = #list
  list[count + 1] = one
  if other then list[count + 2] = other end
end
local function flush()
  for what = 1, 12 do
    local list = pending[what]
    if list then call(unpack(list)) end
  end
  pending = {}
end

-- The state of a lane, by columns: its first item, when its delivery ends, its claim, its client, until when the group rests, how
-- often the first item has been handed out, how far a renewal goes, and the label of who has it.
local function state_of(first, rests, attempts)
  return first .. ZERO .. NOBODY .. ZERO .. rests .. format('%010d', attempts) .. ZERO
end
local function claim_of(state) return sub(state, 33, 64) end
local function ends_of(state) return tonumber(sub(state, 17, 32)) end
local function rests_of(state) return tonumber(sub(state, 81, 96)) end
local function attempts_of(state) return tonumber(sub(state, 97, 106)) end

local function is_group(lane) return byte(lane) == COLON end
-- The states of lanes, false where there is none or somebody has changed it so that it cannot be read.
local function states_of(lanes)
  local states = call('HMGET', STATES, unpack(lanes))
  for at, state in ipairs(states) do
    if state and (#state < 122 or find(sub(state, 1, 32), '%D') or find(sub(state, 81, 122), '%D')) then states[at] = false end
  end
  return states
end
local function member_of(lane, first) return is_group(lane) and first .. lane or first end
-- The lane of an item by its value: when it was pushed, until when it is held back, the group, a tab, the payload. What
-- somebody has changed so that this cannot be read has no group.
local function lane_of(number, value)
  local tab = find(value, TAB, 33, true)
  return (not tab or tab == 33) and number or ':' .. sub(value, 33, tab - 1)
end
local function behind_of(group, number, due) return group .. TAB .. number .. due end

-- After which time something is ready, false if nothing is in line.
local function next_ready()
  read_book()
  local first = call('ZRANGE', LANES, 0, 0, 'WITHSCORES')
  return first[1] and max(tonumber(first[2]), rests_until)
end

-- Who asked in vain, in that order: the first two watch for what is due, and `watched` is the moment that they know of, false for
-- none. Who is not heard of any more is dropped here.
local WATCHED = 'watched'
local function read_watched()
  if watched == nil then
    watched = tonumber(call('HGET', IDLE_ENDS, WATCHED) or 0)
    if watched == 0 then watched = false end
    was_watched = watched
  end
  return watched
end
local function forget_idle(client)
  local rank = call('ZRANK', IDLE, client)
  if not rank then return false end
  if rank < 2 then
    read_watched()
    watched = false
  end
  call('HDEL', IDLE_ENDS, client)
  call('ZREM', IDLE, client)
  return true
end
local function idle_at(place)
  while has_idle do
    local client = call('ZRANGE', IDLE, place, place)[1]
    if not client then
      has_idle = place == 1
      return nil
    elseif tonumber(call('HGET', IDLE_ENDS, client) or 0) > now then
      return client
    else
      forget_idle(client)
    end
  end
end
local function call_one()
  local client = idle_at(-1)
  if not client then return end
  forget_idle(client)
  called[#called + 1] = client
end
-- If something is ready sooner than those know who watch for it, they are told.
local function call_watchers()
  local first, second = idle_at(0), idle_at(1)
  local at = first and next_ready()
  if not at or at <= now then return end
  local known = read_watched()
  if known and known <= at then return end
  watched = at
  called[#called + 1] = first
  called[#called + 1] = second
end

-- Ends one of the requests of a call.
local function end_request()
  if not has_idle then return end
  flush()
  call_watchers()
end

-- Lets a lane stand where it is ready. If that is now, somebody who is idle is told.
local function set_ready(lane, first, ready)
  local member = member_of(lane, first)
  later(SET_LANES, ready == now and now_text or padded(ready), member)
  if not has_idle then return end
  read_book()
  if max(ready, rests_until) <= now then call_one() end
end

-- Until when an empty group rests. One that has items says so itself.
local function rest(lane, rests)
  call('ZREMRANGEBYSCORE', RESTS, '-inf', now_text)
  call('ZADD', RESTS, padded(rests), lane)
  local ends = floor(rests / 1000) + 2
  if call('PEXPIREAT', RESTS, ends, 'GT') == 0 then call('PEXPIREAT', RESTS, ends, 'NX') end
  has_rests = true
end

local function next_item()
  read_book()
  last_item, is_book_new = max(last_item + 1, now), true
  return padded(last_item)
end

-- Puts an item at the end of its lane. `is_behind`: the lane has items.
local function enter(lane, is_behind, number, due, value)
  later(SET_ITEMS, number, value)
  later(SET_NUMBERS, number, number)
  if not is_group(lane) then return set_ready(lane, number, due) end
  if is_behind then return later(SET_BEHIND, '0', behind_of(sub(lane, 2), number, padded(due))) end
  local rests = has_rests and tonumber(call('ZSCORE', RESTS, lane) or 0) or 0
  if rests <= now then rests = 0 end
  later(SET_STATES, lane, state_of(number, padded(rests), 0))
  set_ready(lane, number, max(due, rests))
end

-- Removes a lane's first item; the next one can be handed out.
local function advance(lane, first, rests)
  later(DEL_ITEMS, first)
  later(DEL_NUMBERS, first)
  later(DEL_LANES, member_of(lane, first))
  if not is_group(lane) then return later(DEL_STATES, lane) end
  local group = sub(lane, 2)
  local behind = call('ZRANGEBYLEX', BEHIND, '[' .. group .. '\t', '(' .. group .. '\n', 'LIMIT', 0, 1)[1]
  if behind then
    local number, due = sub(behind, -32, -17), tonumber(sub(behind, -16)) or now
    later(DEL_BEHIND, behind)
    later(SET_STATES, lane, state_of(number, padded(rests), 0))
    return set_ready(lane, number, max(due, now, rests))
  end
  later(DEL_STATES, lane)
  if rests > now then rest(lane, rests) end
end

-- Makes a lane's first item a dead letter: when it died, how often it had been handed out, the length of the reason, the reason,
-- the item. Returns how long that is.
local function bury(lane, first, rests, attempts, reason)
  local value = call('HGET', ITEMS, first)
  -- Without a value somebody has removed it.
  if value then
    call('HSET', LETTERS, first, now_text .. format('%010d%03d', attempts, #reason) .. reason .. value)
    call('ZADD', DEAD, first, first)
  end
  advance(lane, first, rests)
  return value and #value or 0
end

-- Ends a call: tells who is idle after everything else, for to a channel that is not here it would fail.
local function finish()
  flush()
  if is_book_new then
    local life = max(BOOK_LIFE_MS, floor((rests_until - now) / 1000) + 2)
    call('SET', BOOK, padded(last_item) .. padded(last_token) .. padded(rests_until), 'PX', life)
  end
  -- What is remembered of the ids of items lives on for as long as there may be such items.
  if has_dedups and call('EXISTS', NUMBERS) == 0 then
    call('PEXPIRE', DEDUPS, DEDUP_MEMORY / 1000, 'NX')
    call('PEXPIRE', DEDUP_ENDS, DEDUP_MEMORY / 1000, 'NX')
  end
  end_request()
  local told, at = {}, 1
  while called[at] do
    local client = called[at]
    if not told[client] then
      told[client] = true
      local heard = try(PUBLISH, INBOX .. client, 'Q ' .. NAME)
      -- Who does not listen is gone, and somebody else is told. On a cluster the count says nothing.
      if heard == 0 and PUBLISH == 'PUBLISH' then
        if not forget_idle(client) then call_one() end
        call_watchers()
      end
    end
    at = at + 1
  end
  if watched == was_watched then return end
  if watched then call('HSET', IDLE_ENDS, WATCHED, padded(watched)) else call('HDEL', IDLE_ENDS, WATCHED) end
end

do
-- Puts items in line. Takes for each: the group, empty for none; for how long it is held back; its dedup id, empty for none; the
-- payload. Answers each with its number, or with that of the one that was pushed before, as text.

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
  local count = (#ARGV - 3) / 4
  if has_dedups then forget_dedups(2 * count) end
  local lanes = {}
  for i = 4, #ARGV, 4 do
    if ARGV[i] ~= '' then lanes[#lanes + 1] = ':' .. ARGV[i] end
  end
  local has_items = {}
  if lanes[1] then
    for at, state in ipairs(call('HMGET', STATES, unpack(lanes))) do has_items[lanes[at]] = state end
  end
  local answers = { now_text }
  read_book()
  for i = 1, count do
    local at = 4 * i
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
      enter(lane, has_items[lane], number, due, now_text .. due_text .. group .. TAB .. ARGV[at + 3])
      has_items[lane] = true
      answers[i + 1] = last_item
    end
    end_request()
  end
  finish()
  return answers
end)
end
do
-- Hands out what is ready. Takes, for each consumer: its client, the ttl, the kind of interval (- q g) and its period, after how
-- many attempts an item is dead (0: never), the floor, the label, how many claims there are, and the claims. Answers each with
-- after how long to look again (-1: not asked for, -2: the tokens are used up), and then four for each item: its number,
-- attempt, token, and value.

-- How many lanes are looked at in one step, how many values are read at once, after how many bytes a call has answered
-- enough, and how many items it buries: a call must not block the server for long.
local STEP, READ_AT_ONCE, BYTES_MAX, BURIED_MAX = 32, 4, 1048576, 32
-- How much later than the first one the second one looks who watches: it is there for when the first is dead.
local STANDBY = 250000
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
  local states, values = states_of(lanes), {}
  local count, written = 0, 4 * given + 1
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
    answer[written + 1], answer[written + 2], answer[written + 3], answer[written + 4] =
      first, attempts + 1, last_token, value
    written, count = written + 4, at
    bytes_left = bytes_left - #value
  end
  if rules.interval == 'q' and count > 0 then rests_until = now + rules.period end
  flush()
  return count, #firsts == want
end

-- Notes that a client has asked in vain. Returns after how long it is to look again, -1: it will be told.
local function be_idle(client)
  -- Who is not heard of any more makes room.
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
  local place = call('ZRANK', IDLE, client)
  if place > 1 then return -1 end
  read_watched()
  watched = next_ready()
  return watched and max(watched - now, 0) + STANDBY * place or -1
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
end
do
-- Extends deliveries. Takes the claims. Answers each with for how long, 0: it has ended.

operation('renew', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local claims = {}
  for i = 4, #ARGV do claims[i - 3] = ARGV[i] end
  local lanes = call('HMGET', CLAIMS, unpack(claims))
  for at, lane in ipairs(lanes) do lanes[at] = lane or '' end
  local states, answers = states_of(lanes), { now_text }
  for at, claim in ipairs(claims) do
    local state, lane = states[at], lanes[at]
    local ends = state and claim_of(state) == claim and ends_of(state) or 0
    if ends > now then
      local ttl = tonumber(sub(state, 107, 122))
      -- A clock that was set back must not shorten what was promised.
      ends = max(ends, now + ttl)
      later(SET_STATES, lane, sub(state, 1, 16) .. padded(ends) .. sub(state, 33))
      later(SET_LANES, padded(max(ends, rests_of(state))), member_of(lane, sub(state, 1, 16)))
      answers[at + 1] = ttl
    else
      answers[at + 1] = 0
    end
  end
  flush()
  return answers
end)
end
do
-- Ends deliveries. Takes for each: the claim, and what becomes of the item: `a` it is done; `r`, after how long, the most
-- attempts (0: any number) and why; `f` and why; `b` it goes back. Answers 1: done so, 2: it is a dead letter now, 0: the
-- delivery had ended.

local function settle(ARGV, at, lane, state)
  local first, rests = sub(state, 1, 16), rests_of(state)
  local what = ARGV[at]
  if what == 'a' then
    advance(lane, first, rests)
    return 1
  end
  local attempts = attempts_of(state)
  if what == 'f' then
    bury(lane, first, rests, attempts, ARGV[at + 1])
    return 1
  end
  local ready = now
  if what == 'r' then
    local attempts_max = tonumber(ARGV[at + 2])
    if attempts_max > 0 and attempts >= attempts_max then
      bury(lane, first, rests, attempts, ARGV[at + 3])
      return 2
    end
    ready = now + tonumber(ARGV[at + 1])
  else
    attempts = attempts - 1
  end
  later(SET_STATES, lane, state_of(first, sub(state, 81, 96), attempts))
  set_ready(lane, first, max(ready, rests))
  return 1
end

-- How many arguments there are for each letter, with the claim and itself.
local LENGTHS = { a = 2, b = 2, f = 3, r = 5 }

operation('settle', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local claims, places = {}, {}
  local i = 4
  while ARGV[i] do
    claims[#claims + 1], places[#places + 1] = ARGV[i], i + 1
    i = i + LENGTHS[ARGV[i + 1]]
  end
  local lanes = call('HMGET', CLAIMS, unpack(claims))
  for at, lane in ipairs(lanes) do lanes[at] = lane or '' end
  local states, answers, ended = states_of(lanes), { now_text }, {}
  for at, claim in ipairs(claims) do
    local state = states[at]
    if state and claim_of(state) == claim and ends_of(state) > now and not ended[claim] then
      ended[claim] = true
      later(DEL_CLAIMS, claim)
      answers[at + 1] = settle(ARGV, places[at], lanes[at], state)
    else
      answers[at + 1] = 0
    end
    end_request()
  end
  finish()
  return answers
end)
end
do
-- Counts what is in a queue and writes nothing: how many items there are, how many of them are with a consumer, how many
-- dead letters, and after how long something can be taken, -1: nothing waits but behind what is in flight.

operation('stats', { 'no-writes' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  read_book()
  local first = call('ZRANGE', LANES, 0, 0, 'WITHSCORES')
  local ready = first[1] and max(max(tonumber(first[2]), rests_until) - now, 0) or -1
  return { now_text, call('ZCARD', NUMBERS), call('HLEN', CLAIMS), call('ZCARD', DEAD), ready }
end)
end
do
-- Lists items and writes nothing. Takes: `d` for dead letters or `l` for the others, after which number, how many at most.
-- Answers for each its number and what is stored of it: a dead letter alone; else the value, the state of its lane (empty: none)
-- and since when that is ready, -1 if another item comes first.

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
    if value and is_dead then
      answers[#answers + 1] = { number, value }
    elseif value then
      local lane = lane_of(number, value)
      local state = states_of({ lane })[1] or ''
      local is_first = not is_group(lane) or sub(state, 1, 16) == number
      local ready = is_first and tonumber(call('ZSCORE', LANES, member_of(lane, number)) or -1) or -1
      answers[#answers + 1] = { number, value, is_first and state or '', ready }
    end
    bytes = bytes + #(value or '')
  end
  return answers
end)
end
do
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
end
do
-- Removes items that nobody has. Takes: `d` for dead letters or `l` for the others; after which number; up to which; how many to
-- remove and how many to look at, at most. Answers how many were removed, and the number of the last one looked at, empty if
-- there are no more.

local function withdraw(number)
  local value = call('HGET', ITEMS, number)
  local lane = lane_of(number, value or ZERO .. ZERO .. TAB)
  local state = states_of({ lane })[1]
  if is_group(lane) and not (state and sub(state, 1, 16) == number) then
    call('ZREM', BEHIND, behind_of(sub(lane, 2), number, sub(value, 17, 32)))
    call('HDEL', ITEMS, number)
    call('ZREM', NUMBERS, number)
    return true
  end
  if state and claim_of(state) ~= NOBODY then return false end
  advance(lane, number, state and rests_of(state) or 0)
  flush()
  return true
end

local function erase(number)
  call('HDEL', LETTERS, number)
  return call('ZREM', DEAD, number) == 1
end

operation('purge', { 'allow-oom' }, function(KEYS, ARGV)
  begin(KEYS, ARGV)
  insist()
  local is_dead, most, limit = ARGV[4] == 'd', tonumber(ARGV[7]), tonumber(ARGV[8])
  local numbers =
    call('ZRANGEBYSCORE', is_dead and DEAD or NUMBERS, '(' .. ARGV[5], ARGV[6], 'LIMIT', 0, limit)
  local count, last = 0, ''
  for _, number in ipairs(numbers) do
    if count >= most then break end
    last = number
    local remove = is_dead and erase or withdraw
    if remove(number) then count = count + 1 end
  end
  finish()
  return { now_text, count, #numbers < limit and '' or last }
end)
end
