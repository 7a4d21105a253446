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
-- How long contexts outlive the last use of the queue by a client that knows them: 60 days, or half of it where there was no need to say so.
local CONTEXT_LIFE_MS = 5184000000
-- The byte before the name of a group in a lane, and in the values of items the one behind it: names hold no control characters.
local COLON, TAB = 58, '\t'
local ZERO = '0000000000000000'
local NOBODY = '--------------------------------'

-- What belongs to one call.
local NAME, INBOX, PUBLISH
local BOOK, LANES, STATES, NUMBERS, ITEMS, BEHIND, CLAIMS
local RESTS, IDLE, IDLE_ENDS, DEDUPS, DEDUP_ENDS, DEAD, LETTERS
local CONTEXTS, CONTEXT_NUMBERS
local now, now_text
-- The number of the last item, the last token, and until when the whole queue rests; read when first needed.
local last_item, last_token, rests_until, is_book_new
local has_idle, has_rests, has_dedups, has_contexts
-- Until when items are held back that this call gave contexts.
local contexts_due
-- What is yet to be written, by command and key; and who is to be told that something is ready, or once more.
local pending, targets, called, passed_over
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
  CONTEXTS, CONTEXT_NUMBERS = KEYS[15], KEYS[16]
  local clock = call('TIME')
  now = clock[1] * 1000000 + clock[2]
  now_text = padded(now)
  last_item, is_book_new = nil, false
  pending, called, passed_over = {}, {}, {}
  watched, was_watched, contexts_due = nil, nil, 0
  targets = {
    CLAIMS, STATES, LANES, BEHIND, ITEMS, NUMBERS, CONTEXTS, CONTEXT_NUMBERS,
    STATES, CLAIMS, LANES, BEHIND, ITEMS, NUMBERS, CONTEXTS, CONTEXT_NUMBERS,
  }
  local unusual = call('EXISTS', IDLE, RESTS, DEDUPS, CONTEXTS)
  has_idle, has_rests, has_dedups, has_contexts = false, false, false, false
  if unusual > 0 then
    has_idle = call('EXISTS', IDLE) == 1
    has_rests = call('EXISTS', RESTS) == 1
    has_dedups = call('EXISTS', DEDUPS) == 1
    has_contexts = call('EXISTS', CONTEXTS) == 1
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
local DEL_CONTEXTS, DEL_CONTEXT_NUMBERS = 7, 8
local SET_STATES, SET_CLAIMS, SET_LANES, SET_BEHIND, SET_ITEMS, SET_NUMBERS = 9, 10, 11, 12, 13, 14
local SET_CONTEXTS, SET_CONTEXT_NUMBERS = 15, 16
local COMMANDS = {
  'HDEL', 'HDEL', 'ZREM', 'ZREM', 'HDEL', 'ZREM', 'HDEL', 'ZREM',
  'HSET', 'HSET', 'ZADD', 'ZADD', 'HSET', 'ZADD', 'HSET', 'ZADD',
}
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
  for what = 1, 16 do
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

-- Who asked in vain, in that order: the first two are told for when something is due, and `watched` is the moment that they know of,
-- false for none. Who is not heard of any more is dropped here.
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

-- What travels with items stands apart, by their numbers: a client of before takes all behind the tab for payload. Such a client removes
-- an item and leaves its context, so contexts end by themselves, pushes remove what they find without an item, and an empty queue has none.
local function forget_context(number)
  if not has_contexts then return end
  later(DEL_CONTEXTS, number)
  later(DEL_CONTEXT_NUMBERS, number)
end
local function add_context(number, context)
  has_contexts = true
  later(SET_CONTEXTS, number, context)
  later(SET_CONTEXT_NUMBERS, number, number)
end
-- Looks at more contexts than were added, and removes those whose items are gone. Where it begins is as good as chance: there is no order
-- in which they are left behind. No command is called for this that users made for an earlier version may not call.
local function sweep_contexts(count)
  local from = last_item % max(call('ZCARD', CONTEXT_NUMBERS), 1)
  for _, number in ipairs(call('ZRANGE', CONTEXT_NUMBERS, from, from + count - 1)) do
    if not call('ZSCORE', NUMBERS, number) and not call('ZSCORE', DEAD, number) then forget_context(number) end
  end
  flush()
end
-- Lets contexts live on for as long as their queue is used.
local function keep_contexts()
  if call('EXISTS', NUMBERS, DEAD) == 0 then
    call('DEL', CONTEXTS, CONTEXT_NUMBERS)
  elseif contexts_due > now or call('PTTL', CONTEXTS) < CONTEXT_LIFE_MS / 2 then
    local ends = floor(max(contexts_due, now) / 1000) + CONTEXT_LIFE_MS
    for _, key in ipairs({ CONTEXTS, CONTEXT_NUMBERS }) do
      if call('PEXPIREAT', key, ends, 'GT') == 0 then call('PEXPIREAT', key, ends, 'NX') end
    end
  end
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
-- the item. Its context stays. Returns how long that is.
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
  if has_contexts then keep_contexts() end
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
  -- They are off the list already, and nobody else is told in their place.
  for _, client in ipairs(passed_over) do try(PUBLISH, INBOX .. client, 'Q ' .. NAME) end
  if watched == was_watched then return end
  if watched then call('HSET', IDLE_ENDS, WATCHED, padded(watched)) else call('HDEL', IDLE_ENDS, WATCHED) end
end

