-- The functions of the warm tier, which Valkey runs atomically. A function that fails half-way keeps what it has written,
-- so each checks all it is given before its first write.
--
-- Keys of a group, all with the hash tag {database.group}: KEYS[1] :meta, a hash; KEYS[2] :ready, the sorted set of what
-- can be taken, ranges "claim start stop" by the time of the claim's first message in epoch ms; KEYS[3] :claims, number
-- -> note of each claim in PostgreSQL whose items are here, "lease partition attempt start stop bytes time name";
-- KEYS[4] :left, number -> items of the claim that are not settled, and p<partition> -> number in an ordered group;
-- KEYS[5] :leases, token -> what a take was given; KEYS[6] :due, the sorted set of tokens by deadline; KEYS[7] :done, the
-- stream of what PostgreSQL has to be told; and :q:<claim>, the list of the items of a claim, first offset first.
--
-- Nobody here looks into an item. What was taken stays in its list until the whole claim is settled, so that takes and
-- releases move ranges of offsets, and no items. :meta counts items that are not settled, and bytes of claims.
--
-- A lease is packed as {deadline, ahead, run, run, ...}, a run as {claim, top, start, stop, start, stop, ...}: offsets
-- that the worker has, and in an ordered group up to which offset the claim waits behind them.
-- penstock.warm.library fills in FORMAT: functions of different versions have different names.

-- The generation of each window. It is in the memory of this process alone: after a restart, with or without an old
-- snapshot, no window is known, and everything is refused until a dispatcher attaches again.
local live = {}

-- What Valkey does not offer while it loads a library: the first use of each finds it, and all others call it at once.
local call, pack, unpacked, match, format
local function find()
  call, pack, unpacked, match, format = server.call, cmsgpack.pack, cmsgpack.unpack, string.match, string.format
end
call = function(...) find() return call(...) end
pack = function(...) find() return pack(...) end
unpacked = function(...) find() return unpacked(...) end
match = function(...) find() return match(...) end
format = function(...) find() return format(...) end

-- Time in ms that neither goes back nor jumps: deadlines would all end at once, or never. With a dispatcher there is a call
-- every second, so a longer gap is a clock that was set, or a process that was stopped; either way nobody's time ran out.
-- But a dispatcher may have given the window up meanwhile: what was granted before such a gap ends with it.
local GAP = 5000
local last, skew, jumps = 0, 0, 0
local function clock()
  local t = server.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function now()
  local t = clock() + skew
  if last > 0 and t < last then
    skew = skew + (last - t)
    t = last
  elseif last > 0 and t > last + GAP then
    skew = skew - (t - last - 1)
    t = last + 1
    jumps = jumps + 1
  end
  last = t
  return t
end

-- Claims, runs and items that one take has at most.
local MOST_RUNS, MOST_ITEMS = 1000, 5000
-- How many ms after its last grant a dispatcher can still be trusted to tell PostgreSQL what is done.
local TRUSTED = 10000

local function refuse(code, text)
  return server.error_reply(code .. ' ' .. text)
end

local function gone()
  return refuse('WARMGONE', 'no dispatcher has attached this window since Valkey started')
end

local function silent()
  return refuse('WARMHALT', 'the dispatcher has not been heard of lately')
end

local function known(K)
  local gen = live[K[1]]
  return gen ~= nil and call('HGET', K[1], 'gen') == gen
end

-- Why a dispatcher's call is refused, if it is.
local function stale(K, epoch)
  if not known(K) then return gone() end
  local current = call('HGET', K[1], 'epoch')
  if current ~= epoch then return refuse('WARMSTALE', 'epoch ' .. epoch .. ' was replaced by ' .. current) end
end

local function items_of(K, claim)
  return string.sub(K[1], 1, -5) .. 'q:' .. claim
end

-- Tell those who wait that something can be taken. Only where a take found nothing since the last time.
local function wake(K)
  local m = call('HMGET', K[1], 'idle', 'channel', 'queue')
  if m[1] == '1' then
    call('HSET', K[1], 'idle', '0')
    call('PUBLISH', m[2], m[3])
  end
end

-- Ranges that can be taken, gathered for one call.
local function offer(offers, claim, start, stop, time)
  offers[#offers + 1] = time
  offers[#offers + 1] = format('%s %.0f %.0f', claim, start, stop)
end

local function offer_all(K, offers)
  for i = 1, #offers, 1000 do call('ZADD', K[2], unpack(offers, i, math.min(i + 999, #offers))) end
end

-- Read the notes of claims that are not known yet, in one call: the note, lease, partition, attempt, first offset and time
-- of each; false where one is lost.
local function read_notes(K, notes, claims)
  local missing = {}
  for _, claim in ipairs(claims) do
    if notes[claim] == nil then
      missing[#missing + 1] = claim
      notes[claim] = false
    end
  end
  for i = 1, #missing, 1000 do
    local to = math.min(i + 999, #missing)
    local found = call('HMGET', K[3], unpack(missing, i, to))
    for k = i, to do
      local note = found[k - i + 1]
      if note then
        local lease, partition, attempt, start, time = match(note, '^(%S+) (%d+) (%d+) (%d+) %d+ %d+ (%d+)')
        notes[missing[k]] = {note, lease, partition, attempt, tonumber(start), time}
      end
    end
  end
end

-- How many items of claims are not settled, read in one call. A call for each costs as much as all else of a settlement;
-- but of one or two claims those are as few.
local function read_left(K, claims)
  if #claims < 3 or #claims > 1000 then return nil end
  local left, found = {}, call('HMGET', K[4], unpack(claims))
  for k, claim in ipairs(claims) do left[claim] = tonumber(found[k] or '0') end
  return left
end

local function write_left(K, left, changed)
  local pairs_of = {}
  for claim in pairs(changed) do
    pairs_of[#pairs_of + 1] = claim
    pairs_of[#pairs_of + 1] = left[claim]
  end
  if #pairs_of > 0 then call('HSET', K[4], unpack(pairs_of)) end
end

-- Remove a claim, whose note this is, with its items.
local function remove(K, claim, note, ordered)
  local partition, bytes = match(note, '^%S+ (%d+) %d+ %d+ %d+ (%d+)')
  call('HDEL', K[3], claim)
  call('DEL', items_of(K, claim))
  call('HINCRBY', K[1], 'bytes', -tonumber(bytes))
  if ordered then
    local field = 'p' .. partition
    if call('HGET', K[4], field) == claim then call('HDEL', K[4], claim, field) else call('HDEL', K[4], claim) end
  else
    call('HDEL', K[4], claim)
  end
end

-- Forget a claim with all that is left of it, whoever has it: ranges in the sorted set and in leases count for nothing.
local function drop(K, claim, note, ordered)
  local left = tonumber(call('HGET', K[4], claim) or '0')
  if left ~= 0 then call('HINCRBY', K[1], 'items', -left) end
  remove(K, claim, note, ordered)
end

local function is_ordered(K)
  return call('HGET', K[1], 'mode') == 'ordered'
end

local function tell(K, kind, text)
  return call('XADD', K[7], '*', kind, text)
end

local function clear(K)
  for _, claim in ipairs(call('HKEYS', K[3])) do call('DEL', items_of(K, claim)) end
  call('DEL', K[1], K[2], K[3], K[4], K[5], K[6], K[7])
  live[K[1]] = nil
end

-- attach: epoch generation mode items bytes channel queue
-- Makes the caller the dispatcher. Replies whether the window was kept: if not, it is empty and has this generation.
-- Then the numbers of the last load and claim, how often takes were halted, and whether workers may have something of a
-- window that was lost before this one.
local function attach(K, A)
  local current = call('HGET', K[1], 'epoch')
  local kept = known(K)
  if kept and tonumber(A[1]) < tonumber(current) then return refuse('WARMSTALE', 'epoch ' .. current .. ' is newer') end
  if kept and call('HGET', K[1], 'mode') ~= A[3] then kept = false end
  if not kept then
    clear(K)
    call('HSET', K[1], 'gen', A[2], 'loaded', '0', 'claim', '0', 'items', '0', 'bytes', '0', 'until', '0', 'longest', '0',
      'idle', '1', 'unflushed', '0', 'lease', '300000', 'loading', '0', 'halts', '0',
      'jumps', '0', 'withdrawals', '0', 'lost', '0')
    live[K[1]] = A[2]
  end
  call('HSET', K[1], 'epoch', A[1], 'mode', A[3], 'most_items', A[4], 'most_bytes', A[5], 'channel', A[6], 'queue', A[7])
  local m = call('HMGET', K[1], 'loaded', 'claim', 'halts', 'lost')
  return {kept and 1 or 0, tonumber(m[1]), tonumber(m[2]), tonumber(m[3]), tonumber(m[4]) > now() and 1 or 0}
end

-- lose: epoch, ms
-- Takes note that for so long workers may have something of the window that was lost before this one.
local function lose(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  return call('HSET', K[1], 'lost', now() + tonumber(A[2]))
end

-- beat: epoch grant items bytes lease halts
-- Lets takes go on for `grant` ms, unless they were halted since the caller read the settings in PostgreSQL. Replies items,
-- bytes, the longest lease given in ms, ms until the next deadline or -1, and how often takes were halted.
local function beat(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  local t = now()
  local m = call('HMGET', K[1], 'items', 'bytes', 'longest', 'halts')
  call('HSET', K[1], 'most_items', A[3], 'most_bytes', A[4], 'lease', A[5])
  if m[4] == A[6] then call('HSET', K[1], 'until', t + tonumber(A[2]), 'jumps', jumps) end
  local due = call('ZRANGE', K[6], 0, 0, 'WITHSCORES')
  return {tonumber(m[1]), tonumber(m[2]), tonumber(m[3]), due[2] and math.max(0, tonumber(due[2]) - t) or -1,
    tonumber(m[4])}
end

-- begin: epoch, ms
-- Takes note that the dispatcher claims and loads, for so long at most; 0: it is done. Replies items, bytes, and how often
-- somebody has withdrawn claims.
local function begin(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  call('HSET', K[1], 'loading', tonumber(A[2]) > 0 and now() + tonumber(A[2]) or 0)
  local m = call('HMGET', K[1], 'items', 'bytes', 'withdrawals')
  return {tonumber(m[1]), tonumber(m[2]), tonumber(m[3])}
end

-- load: epoch number withdrawals, then for each claim: number note count item…
-- Replies items and bytes. The same load again changes nothing; one that comes late, or before another, is refused, and
-- so is one that may have been claimed before claims were withdrawn: they may not hold any more.
local function load_items(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  local m = call('HMGET', K[1], 'loaded', 'claim', 'items', 'bytes', 'most_items', 'mode', 'withdrawals')
  local number, loaded = tonumber(A[2]), tonumber(m[1])
  if number == loaded then return {tonumber(m[3]), tonumber(m[4])} end
  if number ~= loaded + 1 then return refuse('WARMLATE', 'load ' .. A[2] .. ' comes after ' .. m[1]) end
  if A[3] ~= m[7] then return refuse('WARMMOVED', 'claims were withdrawn since') end
  local ordered, newest, i, items, bytes = m[6] == 'ordered', tonumber(m[2]), 4, 0, 0
  while i <= #A do
    local count = tonumber(A[i + 2])
    local start, stop, size = match(A[i + 1], '^%S+ %d+ %d+ (%d+) (%d+) (%d+) %d+ ')
    if tonumber(A[i]) ~= newest + 1 then return refuse('WARMLATE', 'claim ' .. A[i] .. ' comes after ' .. newest) end
    newest = newest + 1
    if not start or count < 1 or tonumber(stop) - tonumber(start) ~= count or i + 2 + count > #A then
      return refuse('WARMBAD', 'the load is not one, or leaves a gap')
    end
    items, bytes = items + count, bytes + tonumber(size)
    i = i + 3 + count
  end
  if tonumber(m[3]) + items > tonumber(m[5]) then
    return refuse('WARMFULL', 'there is no room for ' .. items .. ' beside ' .. m[3])
  end
  i = 4
  while i <= #A do
    local claim, note, count = A[i], A[i + 1], tonumber(A[i + 2])
    local partition, start, stop, time = match(note, '^%S+ (%d+) %d+ (%d+) (%d+) %d+ (%d+)')
    if ordered then
      local old = call('HGET', K[4], 'p' .. partition)
      local noted = old and call('HGET', K[3], old)
      if noted then drop(K, old, noted, true) end
      call('HSET', K[4], claim, count, 'p' .. partition, claim)
    else
      call('HSET', K[4], claim, count)
    end
    call('HSET', K[3], claim, note)
    local key, at = items_of(K, claim), i + 3
    while at < i + 3 + count do
      local to = math.min(at + 999, i + 2 + count)
      call('RPUSH', key, unpack(A, at, to))
      at = to + 1
    end
    call('ZADD', K[2], time, claim .. ' ' .. start .. ' ' .. stop)
    i = i + 3 + count
  end
  call('HSET', K[1], 'loaded', A[2], 'claim', newest)
  local all, size = call('HINCRBY', K[1], 'items', items), call('HINCRBY', K[1], 'bytes', bytes)
  if items > 0 then wake(K) end
  return {all, size}
end

-- What a lease has, as it is replied: of each run the note of its claim, its first offset, and its items; without a note
-- where the claim is lost.
local function given(K, lease)
  local reply = {}
  for r = 3, #lease do
    local run = lease[r]
    local note = call('HGET', K[3], run[1])
    if not note then
      reply[#reply + 1] = {'', '0', r - 2}
    else
      local base = tonumber(match(note, '^%S+ %d+ %d+ (%d+)'))
      for k = 3, #run, 2 do
        local items = call('LRANGE', items_of(K, run[1]), run[k] - base, run[k + 1] - base - 1)
        reply[#reply + 1] = {note, format('%.0f', run[k]), r - 2, unpack(items)}
      end
    end
  end
  return reply
end

-- The ranges of a partition by its name.
local function candidates(K, most, named)
  local found, all = {}, call('ZRANGE', K[2], 0, -1, 'WITHSCORES')
  for k = 1, #all, 2 do
    local note = call('HGET', K[3], match(all[k], '^%d+'))
    if note and match(note, '^%S+ %d+ %d+ %d+ %d+ %d+ %d+ (.*)$') == named then
      found[#found + 1], found[#found + 2] = all[k], all[k + 1]
      if #found == 2 * most then break end
    end
  end
  return found
end

-- take: token, items per claim, claims, bytes, lease in ms or 0 for the group's, ahead, partition or '', 1 if the reply to
-- the same token may have been lost
-- Replies the longest lease before this one and this one in ms, the mode, what was taken, and where that is nothing, whether
-- something is on its way: being loaded, or more is done than PostgreSQL was told.
local function take(K, A, i, t, m, notes)
  local queue = items_of(K, '')
  local token, asked = A[i], tonumber(A[i + 4])
  local lease = asked > 0 and asked or tonumber(m[7])
  local longest, ordered = tonumber(m[4]), m[3] == 'ordered'
  if A[i + 7] == '1' then
    local before = call('HGET', K[5], token)
    if before then return {longest, lease, m[3], given(K, unpacked(before))} end
  end
  if t >= tonumber(m[2]) or tonumber(m[11]) ~= jumps then return silent() end
  local reply, record, each, runs = {}, {t + lease, tonumber(A[i + 5])}, tonumber(A[i + 1]), tonumber(A[i + 2])
  local claims = runs
  if not ordered then each, runs = math.min(each * runs, MOST_ITEMS), MOST_RUNS end
  runs = math.min(runs, MOST_RUNS)
  local room, rest = tonumber(A[i + 3]), ordered and MOST_ITEMS or each
  local full, offers = tonumber(m[6]) >= tonumber(m[9]), {}
  while not full and #reply < runs and rest > 0 do
    local named, some = A[i + 6] ~= '', nil
    if named then
      some = candidates(K, ordered and runs or MOST_RUNS, A[i + 6])
    else
      some = call('ZPOPMIN', K[2], ordered and math.min(runs - #reply, 100) or 1)
    end
    if #some == 0 then break end
    local wanted, ranges = {}, {}
    for k = 1, #some, 2 do
      local claim, start, stop = match(some[k], '^(%d+) (%d+) (%d+)$')
      wanted[#wanted + 1] = claim
      ranges[k], ranges[k + 1] = start, stop
    end
    read_notes(K, notes, wanted)
    for k = 1, #some, 2 do
      local claim, from, stop = wanted[(k + 1) / 2], ranges[k], ranges[k + 1]
      local note = notes[claim]
      local items, count, looked = {}, 0, note and not full and rest > 0 and #reply < runs
      local start = tonumber(from)
      stop = tonumber(stop)
      -- What failed before comes as PostgreSQL would give it, so that its neighbours do not fail with it.
      if looked and not ordered and note[4] ~= '1' then
        runs = claims
        looked = #reply < runs
      end
      if looked then
        local at = start - note[5]
        items = call('LRANGE', queue .. claim, at, at + math.min(each, rest, stop - start) - 1)
        while count < #items and (room >= #items[count + 1] or (#reply == 0 and count == 0)) do
          count = count + 1
          room = room - #items[count]
        end
        if count < #items then
          full = true
          for n = #items, count + 1, -1 do items[n] = nil end
        end
      end
      if named then
        if count > 0 or not note then call('ZREM', K[2], some[k]) end
      elseif count == 0 and note and (full or not looked) then
        offers[#offers + 1], offers[#offers + 2] = some[k + 1], some[k]
      end
      if count > 0 then
        local number = #record - 1
        if ordered then
          record[#record + 1] = {claim, stop, start, start + count}
        else
          if start + count < stop then offer(offers, claim, start + count, stop, some[k + 1]) end
          record[#record + 1] = {claim, 0, start, start + count}
        end
        rest = rest - count
        reply[#reply + 1] = {note[1], from, number, unpack(items)}
      end
    end
    -- All of them were looked at, and what is left of them is for another take.
    if named then break end
  end
  offer_all(K, offers)
  if #reply == 0 then
    if m[5] ~= '1' then call('HSET', K[1], 'idle', '1') end
    return {longest, lease, m[3], {}, (full or tonumber(m[8]) >= t) and 1 or 0}
  end
  if call('HSETNX', K[5], token, pack(record)) == 0 then
    -- The same take came again and was faster: its caller has that, and nobody waits for this one.
    offers = {}
    for r = 3, #record do
      local run = record[r]
      offer(offers, run[1], run[3], ordered and run[2] or run[4], notes[run[1]][6])
    end
    offer_all(K, offers)
    return {longest, lease, m[3], given(K, unpacked(call('HGET', K[5], token)))}
  end
  call('ZADD', K[6], t + lease, token)
  if lease > longest then call('HSET', K[1], 'longest', lease) end
  return {longest, lease, m[3], reply}
end

-- Read what a lease has, unless it ended.
local function leased(K, token, t)
  local packed = call('HGET', K[5], token)
  if not packed then return nil end
  local lease = unpacked(packed)
  return lease[1] > t and lease or nil
end

-- look: token, ms that the lease shall last at least
-- Replies the mode, and what a lease still has: nothing where it is lost.
local function look(K, A)
  if not known(K) then return gone() end
  local t, mode = now(), call('HGET', K[1], 'mode')
  local lease = leased(K, A[1], t)
  if not lease then return {mode, {}} end
  if t + tonumber(A[2]) > lease[1] then
    lease[1] = t + tonumber(A[2])
    call('HSET', K[5], A[1], pack(lease))
    call('ZADD', K[6], lease[1], A[1])
  end
  return {mode, given(K, lease)}
end

-- Cut the offsets from `start` up to `stop` (-1: no bound) out of a run, and return them as ranges.
local function cut(run, start, stop, ordered)
  local out, rest = {}, {run[1], run[2]}
  if start < 0 and stop < 0 then
    for k = 3, #run do out[k - 2] = run[k] end
    return out, rest
  end
  if stop < 0 then stop = math.huge end
  if ordered then start = -1 end
  for k = 3, #run, 2 do
    local lo, hi = run[k], run[k + 1]
    local from, to = math.max(lo, start), math.min(hi, stop)
    if from >= to then
      rest[#rest + 1], rest[#rest + 2] = lo, hi
    else
      out[#out + 1], out[#out + 2] = from, to
      if lo < from then rest[#rest + 1], rest[#rest + 2] = lo, from end
      if to < hi then rest[#rest + 1], rest[#rest + 2] = to, hi end
    end
  end
  return out, rest
end

-- settle: how, then for each part: token run start stop
-- how: 'ack' - done, and PostgreSQL has to be told; 'told' - PostgreSQL was told; 'ended' - it was told, and the claim has
-- ended there; 'release' - not done, and another may take it.
-- Replies the id of the entry in the stream or '', then 1 for each part that was settled and 0 for each whose lease is lost.
-- Acknowledgements are refused while nobody would tell PostgreSQL.
local function settle(K, A, first, to, t, m, notes)
  -- After a gap nobody knows how long ago the last grant was.
  if A[first] == 'ack' and (t > tonumber(m[2]) + TRUSTED or tonumber(m[11]) ~= jumps) then return silent() end
  local how, ordered, replies, lines, freed, ready = A[first], m[3] == 'ordered', {''}, {}, 0, false
  local leases, offers, wanted = {}, {}, {}
  for i = first + 1, to, 4 do
    local token = A[i]
    if leases[token] == nil then leases[token] = leased(K, token, t) or false end
    local run = leases[token] and leases[token][tonumber(A[i + 1]) + 2]
    if run then wanted[#wanted + 1] = run[1] end
  end
  read_notes(K, notes, wanted)
  local left, changed = read_left(K, wanted), {}
  for i = first + 1, to, 4 do
    local token, number = A[i], tonumber(A[i + 1])
    local lease = leases[token]
    local run = lease and lease[number + 2]
    local note = run and notes[run[1]]
    if not note then
      replies[#replies + 1] = 0
    else
      local claim = run[1]
      local out, rest = cut(run, tonumber(A[i + 2]), tonumber(A[i + 3]), ordered)
      lease[number + 2] = rest
      lease.changed = true
      replies[#replies + 1] = 1
      if how == 'release' then
        local time = note[6]
        if not ordered then
          for k = 1, #out, 2 do offer(offers, claim, out[k], out[k + 1], time) end
          ready = ready or #out > 0
        elseif #out > 0 then
          offer(offers, claim, out[1], run[2], time)
          ready = true
        end
      elseif how == 'ended' then
        drop(K, claim, note[1], ordered)
        notes[claim] = false
      elseif #out > 0 then
        local count = 0
        for k = 1, #out, 2 do
          count = count + out[k + 1] - out[k]
          if how == 'ack' then
            lines[#lines + 1] = format('%s %s %.0f %.0f', note[2], note[3], out[k], out[k + 1])
          end
        end
        freed = freed + count
        local rest_of = left and left[claim] - count or call('HINCRBY', K[4], claim, -count)
        if left then left[claim], changed[claim] = rest_of, rest_of > 0 or nil end
        if rest_of <= 0 then
          remove(K, claim, note[1], ordered)
          notes[claim] = false
        elseif ordered and #rest == 2 and out[#out] < run[2] then
          offer(offers, claim, out[#out], run[2], note[6])
          ready = true
        end
      end
    end
  end
  if left then write_left(K, left, changed) end
  offer_all(K, offers)
  for token, lease in pairs(leases) do
    if lease and lease.changed then
      lease.changed = nil
      local empty = true
      for r = 3, #lease do empty = empty and #lease[r] == 2 end
      if empty then
        call('HDEL', K[5], token)
        call('ZREM', K[6], token)
      else
        call('HSET', K[5], token, pack(lease))
      end
    end
  end
  if #lines > 0 then
    replies[1] = tell(K, 'done', table.concat(lines, '\n'))
    -- Nothing else of this call changes them.
    m[6] = tonumber(m[6]) + freed
    call('HSET', K[1], 'items', tonumber(m[10]) - freed, 'unflushed', m[6])
  elseif freed > 0 then
    call('HINCRBY', K[1], 'items', -freed)
  end
  if how == 'told' or how == 'ended' then tell(K, 'room', '') end
  if ready then
    wake(K)
    m[5] = '0'
  end
  return replies
end

-- What takes and settlements read of :meta, all at once; nil where the window is not known.
local function read(K)
  local m = call('HMGET', K[1], 'gen', 'until', 'mode', 'longest', 'idle', 'unflushed', 'lease', 'loading', 'most_items',
    'items', 'jumps')
  return m[1] and live[K[1]] == m[1] and m or nil
end

local function take_alone(K, A)
  local m = read(K)
  return m and take(K, A, 1, now(), m, {}) or gone()
end

local function settle_alone(K, A)
  local m = read(K)
  return m and settle(K, A, 1, #A, now(), m, {}) or gone()
end

-- settle_and_take: the 8 arguments of take, then those of settle
-- Replies both replies. Where the take is refused, its code stands in for its reply: what was settled stays settled.
local function settle_and_take(K, A)
  local m, t, notes = read(K), now(), {}
  if not m then return gone() end
  local settled = settle(K, A, 9, #A, t, m, notes)
  if settled.err then return settled end
  local taken = take(K, A, 1, t, m, notes)
  if taken.err then taken = match(taken.err, '(WARM%u+)') end
  return {settled, taken}
end

-- renew: lease in ms or 0 for the group's, begun, token…
-- Replies the longest lease before this one and this one in ms, whether the dispatcher was heard of lately, then 1 for each
-- that was renewed and 0 for each that is lost.
local function renew(K, A)
  if not known(K) then return gone() end
  local m = call('HMGET', K[1], 'longest', 'lease', 'until', 'jumps')
  local ms, t = tonumber(A[1]) > 0 and tonumber(A[1]) or tonumber(m[2]), now()
  local replies = {tonumber(m[1]), ms, t < tonumber(m[3]) and tonumber(m[4]) == jumps and 1 or 0}
  for i = 3, #A do
    local lease = leased(K, A[i], t)
    local alive = false
    if lease then
      for r = 3, #lease do
        alive = alive or (#lease[r] > 2 and call('HEXISTS', K[3], lease[r][1]) == 1)
      end
    end
    if alive then
      lease[1] = t + ms
      if A[2] == '1' then lease[2] = 0 end
      call('HSET', K[5], A[i], pack(lease))
      call('ZADD', K[6], lease[1], A[i])
      replies[#replies + 1] = 1
    else
      replies[#replies + 1] = 0
    end
  end
  if ms > tonumber(m[1]) then call('HSET', K[1], 'longest', ms) end
  return replies
end

-- expire: epoch most
-- Ends leases whose time is over. Replies how many, and ms until the next deadline or -1.
local function expire(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  local t, ordered = now(), is_ordered(K)
  local over = call('ZRANGE', K[6], '-inf', t, 'BYSCORE', 'LIMIT', 0, A[2])
  for _, token in ipairs(over) do
    local packed = call('HGET', K[5], token)
    if packed then
      local lease, lines = unpacked(packed), {}
      for r = 3, #lease do
        local run = lease[r]
        local note = #run > 2 and call('HGET', K[3], run[1])
        if note then
          local id, partition = match(note, '^(%S+) (%d+)')
          local count = 0
          for k = 3, #run, 2 do
            lines[#lines + 1] = format('%s %s %.0f %.0f %d', id, partition, run[k], run[k + 1], lease[2])
            count = count + run[k + 1] - run[k]
          end
          if ordered then
            drop(K, run[1], note, true)
          else
            call('HINCRBY', K[1], 'items', -count)
            if call('HINCRBY', K[4], run[1], -count) <= 0 then remove(K, run[1], note, false) end
          end
        end
      end
      if #lines > 0 then tell(K, 'expired', table.concat(lines, '\n')) end
    end
    call('HDEL', K[5], token)
    call('ZREM', K[6], token)
  end
  local due = call('ZRANGE', K[6], 0, 0, 'WITHSCORES')
  return {#over, due[2] and math.max(0, tonumber(due[2]) - t) or -1}
end

-- trim: epoch, items acknowledged, id
-- Removes what PostgreSQL was told, up to and without this id.
local function trim(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  call('XTRIM', K[7], 'MINID', A[3])
  local told = tonumber(A[2])
  if told > 0 then
    local rest, most = call('HINCRBY', K[1], 'unflushed', -told), tonumber(call('HGET', K[1], 'most_items'))
    if rest < most and rest + told >= most then wake(K) end
  end
  return 1
end

-- forget: epoch number…
-- Forgets claims that are lost in PostgreSQL.
local function forget(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  local ordered, forgotten = is_ordered(K), 0
  for i = 2, #A do
    local note = call('HGET', K[3], A[i])
    if note then
      drop(K, A[i], note, ordered)
      forgotten = forgotten + 1
    end
  end
  return forgotten
end

-- withdraw: partition or '', whether to leave claims of which workers have something, and only the claim with this lease or
-- this id of a partition, if not ''
-- Takes claims out of the window and asks the dispatcher to give them back. Replies the id of the entry that says so, or ''.
-- Without exception, because something has changed in PostgreSQL, that goes for those on their way here, too. Most leases are
-- those of claims that were never here, and are no reason to refuse what is on its way.
local function withdraw(K, A)
  if not known(K) then return '' end
  local ordered, lines, flying = is_ordered(K), {}, {}
  local only = A[3] or ''
  if A[2] ~= '1' and not match(only, '-') then call('HINCRBY', K[1], 'withdrawals', 1) end
  if A[2] == '1' then
    for _, packed in ipairs(call('HVALS', K[5])) do
      local lease = unpacked(packed)
      for r = 3, #lease do
        if #lease[r] > 2 then flying[lease[r][1]] = true end
      end
    end
  end
  local all = call('HGETALL', K[3])
  for k = 1, #all, 2 do
    local id, partition, name = match(all[k + 1], '^(%S+) (%d+) %d+ %d+ %d+ %d+ %d+ (.*)$')
    if (A[1] == '' or name == A[1]) and (only == '' or id == only or partition == only) and not flying[all[k]] then
      drop(K, all[k], all[k + 1], ordered)
      lines[#lines + 1] = id .. ' ' .. partition
    end
  end
  return #lines > 0 and tell(K, 'withdrawn', table.concat(lines, '\n')) or ''
end

-- halt: no takes until a beat that knows of it. Replies the id of the entry that tells the dispatcher.
local function halt(K, A)
  if not known(K) then return '' end
  call('HSET', K[1], 'until', '0')
  call('HINCRBY', K[1], 'halts', 1)
  return tell(K, 'halted', '')
end

-- detach: epoch, whether to leave workers alone with what they have
-- Removes the window. Replies 0 where PostgreSQL has to be told something first, or where workers still have something.
local function detach(K, A)
  local refused = stale(K, A[1])
  if refused then return refused end
  -- What workers have just done with is given back first: nobody else would.
  withdraw(K, {'', '1', ''})
  if call('XLEN', K[7]) > 0 or (A[2] ~= '1' and call('ZCARD', K[6]) > 0) then return 0 end
  clear(K)
  return 1
end

-- discard: removes the window of a group that is not there any more.
local function discard(K, A)
  clear(K)
  return 1
end

-- publish: field, group id; the key is the hash of all windows
-- Lets clients find a window.
local function publish(K, A)
  return call('HSET', K[1], A[1], A[2])
end

-- unpublish: field, group id; the key is the hash of all windows
-- Lets clients find a window no more, unless another group has got the name.
local function unpublish(K, A)
  if call('HGET', K[1], A[1]) ~= A[2] then return 0 end
  return call('HDEL', K[1], A[1])
end

-- stats: replies whether it is attached and not halted, items, bytes, ready, leases, stream entries, oldest time or -1.
local function stats(K, A)
  if not known(K) then return {0, 0, 0, 0, 0, 0, -1} end
  local m = call('HMGET', K[1], 'items', 'bytes', 'until')
  local t = clock() + skew
  local first = call('ZRANGE', K[2], 0, 0, 'WITHSCORES')
  return {tonumber(m[3]) > t and 1 or 0, tonumber(m[1]), tonumber(m[2]), call('ZCARD', K[2]),
    call('ZCARD', K[6]), call('XLEN', K[7]), first[2] and tonumber(first[2]) or -1}
end

local function register(name, callback, flags)
  server.register_function{function_name = 'FORMAT_' .. name, callback = callback, flags = flags}
end

-- A full memory stops loads, which would add to it, and nothing else.
register('load', load_items, {})
register('attach', attach, {'allow-oom'})
register('lose', lose, {'allow-oom'})
register('beat', beat, {'allow-oom'})
register('begin', begin, {'allow-oom'})
register('take', take_alone, {'allow-oom'})
register('settle', settle_alone, {'allow-oom'})
register('settle_and_take', settle_and_take, {'allow-oom'})
register('look', look, {'allow-oom'})
register('renew', renew, {'allow-oom'})
register('expire', expire, {'allow-oom'})
register('trim', trim, {'allow-oom'})
register('forget', forget, {'allow-oom'})
register('withdraw', withdraw, {'allow-oom'})
register('halt', halt, {'allow-oom'})
register('detach', detach, {'allow-oom'})
register('discard', discard, {'allow-oom'})
register('publish', publish, {'allow-oom'})
register('unpublish', unpublish, {'allow-oom'})
register('stats', stats, {'no-writes', 'allow-oom'})
