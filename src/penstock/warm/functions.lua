-- The functions of the warm tier, which Valkey runs atomically. A function that fails half-way keeps what it has written,
-- so each checks all it is given before its first write.
--
-- Keys of a group, all with the hash tag {database.group}: KEYS[1] :meta, a hash; KEYS[2] :ready, the sorted set of
-- what can be taken, ranges of claims by the time of the claim's first message in epoch ms: the first of a claim has its
-- number for a name; KEYS[3] :claims, number -> note of each claim in PostgreSQL whose items are here, "lease partition
-- attempt start stop bytes time name";
-- KEYS[4] :due, the sorted set of the tokens of leases by deadline; KEYS[5] :done, the stream of what PostgreSQL has to be
-- told; and :q:<claim>, the list of the items of a claim, first offset first.
--
-- Nobody here looks into an item. What was taken stays in its list until the whole claim is settled, so that takes and
-- releases move ranges of offsets, and no items. :meta counts items that are not settled, and bytes of claims.
-- penstock.warm.library fills in FORMAT: functions of different versions have different names.

-- What is known of each window by its first key: its generation (gen), its claims by number (claims), the number of the
-- newest claim of each partition of an ordered group (newest), its leases by token (leases), and by name which offsets of
-- which claim the ranges in :ready are (ranges; of so many the names were made up: named), and how many entries :done has
-- (entries). All that is in the memory of this process alone: after a restart, with or without an old snapshot, no window
-- is known, and everything is refused until a dispatcher attaches again. The same goes for a window of which somebody has
-- deleted a key.
--
-- A claim is its note, taken apart, with `left`, how many items are not settled, and `names`, those of its ranges but for
-- the first one. A lease has a deadline, the one that it was given (own), whether it was taken ahead, how many of its runs
-- are not settled (open), and the runs: of one claim the offsets that a worker has, from run[1] up to run[2] and so on, and
-- the range that they were taken from, which in an ordered group waits behind them.
local live = {}

-- What Valkey does not offer while it loads a library: the first use of each finds it, and all others call it at once.
local call, match, format
local function find()
  call, match, format = server.call, string.match, string.format
end
call = function(...) find() return call(...) end
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
-- How many names of ranges are kept of a claim before those that are not used any more are forgotten; more are in use only
-- where a claim has more ranges, and a claim has 500 items.
local MOST_NAMES = 1000
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

-- What is known of a window whose generation this is; nil where that is another one.
local function window_of(K, gen)
  local window = live[K[1]]
  return window and gen == window.gen and window or nil
end

local function known(K)
  return window_of(K, call('HGET', K[1], 'gen'))
end

-- The window for a dispatcher's call, or nil and why it is refused.
local function served(K, epoch)
  local window = known(K)
  if not window then return nil, gone() end
  local current = call('HGET', K[1], 'epoch')
  if current ~= epoch then return nil, refuse('WARMSTALE', 'epoch ' .. epoch .. ' was replaced by ' .. current) end
  return window
end

-- Give up a window of which something is missing.
local function broken(window)
  window.gen = nil
  return gone()
end

local function count(some)
  local n = 0
  for _ in pairs(some) do n = n + 1 end
  return n
end

local function is_whole(K, window)
  return call('ZCARD', K[2]) == count(window.ranges) and call('HLEN', K[3]) == count(window.claims)
    and call('ZCARD', K[4]) == count(window.leases) and call('XLEN', K[5]) == window.entries
end

-- How many bytes of values an item stands for. Of a large one there is the size: penstock.warm.items.
local function size_of(item)
  return #item < 40 and tonumber(match(item, '^L(%d+) ')) or #item
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

-- Let a range be taken; gathered for one call.
local function offer(window, offers, name, range, time)
  window.ranges[name] = range
  offers[#offers + 1] = time
  offers[#offers + 1] = name
end

-- A name for another range of a claim.
local function another(window, number)
  window.named = window.named + 1
  local name, claim = format('%s.%d', number, window.named), window.claims[number]
  if #claim.names == MOST_NAMES then
    local names = {}
    for _, each in ipairs(claim.names) do
      if window.ranges[each] then names[#names + 1] = each end
    end
    claim.names = names
  end
  claim.names[#claim.names + 1] = name
  return name
end

local function offer_all(K, offers)
  for i = 1, #offers, 1000 do call('ZADD', K[2], unpack(offers, i, math.min(i + 999, #offers))) end
end

-- Take the note of a claim apart; nil where it is none.
local function read_note(text)
  local lease, partition, attempt, start, stop, size, time, name =
    match(text, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  return lease and {
    note = text, id = lease, partition = partition, attempt = attempt, start = tonumber(start), stop = tonumber(stop),
    size = tonumber(size), time = time, name = name, names = {}
  }
end

-- Remove a claim with its items; `lost`: also those that are not settled, whoever has them: ranges in leases count for
-- nothing then.
local function remove(K, window, number, lost)
  local claim = window.claims[number]
  if lost and claim.left ~= 0 then
    call('HINCRBY', K[1], 'items', -claim.left)
    claim.names[#claim.names + 1] = number
    for _, name in ipairs(claim.names) do
      if window.ranges[name] then
        window.ranges[name] = nil
        call('ZREM', K[2], name)
      end
    end
  end
  window.claims[number] = nil
  if window.newest[claim.partition] == number then window.newest[claim.partition] = nil end
  call('HDEL', K[3], number)
  call('DEL', items_of(K, number))
  call('HINCRBY', K[1], 'bytes', -claim.size)
end

local function is_ordered(K)
  return call('HGET', K[1], 'mode') == 'ordered'
end

local function tell(K, window, kind, text)
  window.entries = window.entries + 1
  return call('XADD', K[5], '*', kind, text)
end

local function clear(K)
  local window = live[K[1]]
  for number in pairs(window and window.claims or {}) do call('DEL', items_of(K, number)) end
  for _, number in ipairs(call('HKEYS', K[3])) do call('DEL', items_of(K, number)) end
  call('DEL', K[1], K[2], K[3], K[4], K[5])
  live[K[1]] = nil
end

-- attach: epoch generation mode items bytes channel queue, ms for which workers may have something of a window that is lost
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
      'jumps', '0', 'withdrawals', '0', 'lost', now() + tonumber(A[8]))
    live[K[1]] = {gen = A[2], claims = {}, newest = {}, leases = {}, ranges = {}, named = 0, entries = 0}
  end
  call('HSET', K[1], 'epoch', A[1], 'mode', A[3], 'most_items', A[4], 'most_bytes', A[5], 'channel', A[6], 'queue', A[7])
  local m = call('HMGET', K[1], 'loaded', 'claim', 'halts', 'lost')
  return {kept and 1 or 0, tonumber(m[1]), tonumber(m[2]), tonumber(m[3]), tonumber(m[4]) > now() and 1 or 0}
end

-- lose: epoch, ms
-- Takes note for how long workers may have something of the window that was lost before this one.
local function lose(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  return call('HSET', K[1], 'lost', now() + tonumber(A[2]))
end

-- beat: epoch grant items bytes lease halts
-- Lets takes go on for `grant` ms, unless they were halted since the caller read the settings in PostgreSQL. Replies items,
-- bytes, the longest lease given in ms, ms until the next deadline or -1, and how often takes were halted.
local function beat(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  if not is_whole(K, window) then return broken(window) end
  local t = now()
  local m = call('HMGET', K[1], 'items', 'bytes', 'longest', 'halts')
  call('HSET', K[1], 'most_items', A[3], 'most_bytes', A[4], 'lease', A[5])
  if m[4] == A[6] then call('HSET', K[1], 'until', t + tonumber(A[2]), 'jumps', jumps) end
  local due = call('ZRANGE', K[4], 0, 0, 'WITHSCORES')
  return {tonumber(m[1]), tonumber(m[2]), tonumber(m[3]), due[2] and math.max(0, tonumber(due[2]) - t) or -1,
    tonumber(m[4])}
end

-- begin: epoch, ms
-- Takes note that the dispatcher claims and loads, for so long at most; 0: it is done. Replies items, bytes, and how often
-- somebody has withdrawn claims.
local function begin(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  call('HSET', K[1], 'loading', tonumber(A[2]) > 0 and now() + tonumber(A[2]) or 0)
  local m = call('HMGET', K[1], 'items', 'bytes', 'withdrawals')
  return {tonumber(m[1]), tonumber(m[2]), tonumber(m[3])}
end

-- load: epoch number withdrawals, then for each claim: number note count item…
-- Replies items and bytes. The same load again changes nothing; one that comes late, or before another, is refused, and
-- so is one that may have been claimed before claims were withdrawn: they may not hold any more.
local function load_items(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  local m = call('HMGET', K[1], 'loaded', 'claim', 'items', 'bytes', 'most_items', 'mode', 'withdrawals')
  local number, loaded = tonumber(A[2]), tonumber(m[1])
  if number == loaded then return {tonumber(m[3]), tonumber(m[4])} end
  if number ~= loaded + 1 then return refuse('WARMLATE', 'load ' .. A[2] .. ' comes after ' .. m[1]) end
  if A[3] ~= m[7] then return refuse('WARMMOVED', 'claims were withdrawn since') end
  local newest, i, items, bytes, claims = tonumber(m[2]), 4, 0, 0, {}
  while i <= #A do
    local claim, count = read_note(A[i + 1]), tonumber(A[i + 2])
    if tonumber(A[i]) ~= newest + 1 then return refuse('WARMLATE', 'claim ' .. A[i] .. ' comes after ' .. newest) end
    newest = newest + 1
    if not claim or count < 1 or claim.stop - claim.start ~= count or i + 2 + count > #A then
      return refuse('WARMBAD', 'the load is not one, or leaves a gap')
    end
    claim.left = count
    items, bytes = items + count, bytes + claim.size
    claims[#claims + 1] = claim
    i = i + 3 + count
  end
  if tonumber(m[3]) + items > tonumber(m[5]) then
    return refuse('WARMFULL', 'there is no room for ' .. items .. ' beside ' .. m[3])
  end
  i = 4
  for _, claim in ipairs(claims) do
    local number = A[i]
    if m[6] == 'ordered' then
      local before = window.newest[claim.partition]
      if before then remove(K, window, before, true) end
      window.newest[claim.partition] = number
    end
    window.claims[number] = claim
    call('HSET', K[3], number, claim.note)
    local key, at = items_of(K, number), i + 3
    while at < i + 3 + claim.left do
      local to = math.min(at + 999, i + 2 + claim.left)
      call('RPUSH', key, unpack(A, at, to))
      at = to + 1
    end
    window.ranges[number] = {claim = number, start = claim.start, stop = claim.stop}
    call('ZADD', K[2], claim.time, number)
    i = i + 3 + claim.left
  end
  call('HSET', K[1], 'loaded', A[2], 'claim', newest)
  local all, size = call('HINCRBY', K[1], 'items', items), call('HINCRBY', K[1], 'bytes', bytes)
  if items > 0 then wake(K) end
  return {all, size}
end

-- Put a run into a reply, which has no parts of its own, because those take most of the time of a reply.
local function put(reply, note, start, number, items)
  local count, at = #items, #reply
  reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = note, start, number, count
  for k = 1, count do reply[at + 4 + k] = items[k] end
end

-- What a lease has, as it is replied: of each run the note of its claim, its first offset, its number, how many items, and
-- these; without a note where the claim is lost. Nil where items are missing.
local function given(K, window, lease)
  local reply = {}
  for number, run in ipairs(lease) do
    local claim = window.claims[run.claim]
    if not claim then put(reply, '', 0, number, {}) end
    for k = 1, claim and #run or 0, 2 do
      local items = call('LRANGE', items_of(K, run.claim), run[k] - claim.start, run[k + 1] - claim.start - 1)
      if #items < run[k + 1] - run[k] then return nil end
      put(reply, claim.note, run[k], number, items)
    end
  end
  return reply
end

-- The ranges of a partition by its name.
local function candidates(K, window, most, named)
  local found, all = {}, call('ZRANGE', K[2], 0, -1, 'WITHSCORES')
  for k = 1, #all, 2 do
    local range = window.ranges[all[k]]
    local claim = range and window.claims[range.claim]
    if claim and claim.name == named then
      found[#found + 1], found[#found + 2] = all[k], all[k + 1]
      if #found == 2 * most then break end
    end
  end
  return found
end

-- take: token, items per claim, claims, bytes, lease in ms or 0 for the group's, ahead, partition or ''
-- Replies the longest lease before this one and this one in ms, the mode, what was taken, and where that is nothing, whether
-- something is on its way: being loaded, or more is done than PostgreSQL was told. The same token gets the same again: a
-- reply may have been lost.
local function take(K, A, t, m, window)
  local token, asked, queue = A[1], tonumber(A[5]), items_of(K, '')
  local ms = asked > 0 and asked or tonumber(m[7])
  local longest, ordered = tonumber(m[4]), m[3] == 'ordered'
  local before = window.leases[token]
  if before then
    local runs = given(K, window, before)
    return runs and {longest, ms, m[3], runs} or broken(window)
  end
  if t >= tonumber(m[2]) or tonumber(m[11]) ~= jumps then return silent() end
  local reply, lease, each, runs = {}, {deadline = t + ms, own = t + ms, ahead = A[6]}, tonumber(A[2]), tonumber(A[3])
  local claims = runs
  if not ordered then each, runs = math.min(each * runs, MOST_ITEMS), MOST_RUNS end
  runs = math.min(runs, MOST_RUNS)
  local room, rest = tonumber(A[4]), ordered and MOST_ITEMS or each
  local full, offers = tonumber(m[6]) >= tonumber(m[9]), {}
  while not full and #lease < runs and rest > 0 do
    local named, some = A[7] ~= '', nil
    if named then
      some = candidates(K, window, ordered and runs or MOST_RUNS, A[7])
    else
      some = call('ZPOPMIN', K[2], ordered and math.min(runs - #lease, 100) or 1)
    end
    if #some == 0 then break end
    for k = 1, #some, 2 do
      local name = some[k]
      local range = window.ranges[name]
      local claim = range and window.claims[range.claim]
      local items, count, looked = nil, 0, claim and not full and rest > 0 and #lease < runs
      -- What failed before comes as PostgreSQL would give it, so that its neighbours do not fail with it.
      if looked and not ordered and claim.attempt ~= '1' then
        runs = claims
        looked = #lease < runs
      end
      if looked then
        local at, most = range.start - claim.start, math.min(each, rest, range.stop - range.start)
        items = call('LRANGE', queue .. range.claim, at, at + most - 1)
        if #items < most then return broken(window) end
        while count < #items do
          local size = size_of(items[count + 1])
          if size > room and (#lease > 0 or count > 0) then break end
          count = count + 1
          room = room - size
        end
        if count < #items then
          full = true
          for n = #items, count + 1, -1 do items[n] = nil end
        end
      end
      local stays = claim and count == 0
      if count > 0 then
        if named then call('ZREM', K[2], name) end
        local start = range.start
        lease[#lease + 1] = {start, start + count, claim = range.claim, range = range}
        rest = rest - count
        put(reply, claim.note, start, #lease, items)
        range.start = start + count
        stays = not ordered and range.start < range.stop
      end
      if not stays then
        window.ranges[name] = nil
      elseif count > 0 or not named then
        offer(window, offers, name, range, some[k + 1])
      end
    end
    -- All of them were looked at, and what is left of them is for another take.
    if named then break end
  end
  offer_all(K, offers)
  if #lease == 0 then
    if m[5] ~= '1' then call('HSET', K[1], 'idle', '1') end
    return {longest, ms, m[3], {}, (full or tonumber(m[8]) >= t) and 1 or 0}
  end
  lease.open = #lease
  window.leases[token] = lease
  call('ZADD', K[4], lease.deadline, token)
  if ms > longest then call('HSET', K[1], 'longest', ms) end
  return {longest, ms, m[3], reply}
end

-- A lease, unless it ended.
local function leased(window, token, t)
  local lease = window.leases[token]
  return lease and lease.deadline > t and lease or nil
end

local function ends_at(K, token, lease, deadline)
  lease.deadline = deadline
  call('ZADD', K[4], deadline, token)
end

local function end_lease(K, window, token)
  window.leases[token] = nil
  call('ZREM', K[4], token)
end

-- look: token, ms that the lease shall last at least, until something of it is settled; below 0: as long as it was given
-- Replies the mode, and what a lease still has: nothing where it is lost.
local function look(K, A)
  local window = known(K)
  if not window then return gone() end
  local t, mode = now(), call('HGET', K[1], 'mode')
  local lease = leased(window, A[1], t)
  if not lease then return {mode, {}} end
  local ms = tonumber(A[2])
  if ms < 0 and lease.deadline > lease.own then ends_at(K, A[1], lease, lease.own) end
  if t + ms > lease.deadline then ends_at(K, A[1], lease, t + ms) end
  local runs = given(K, window, lease)
  return runs and {mode, runs} or broken(window)
end

-- has: lease of a claim in PostgreSQL
-- Replies whether the claim is here: then a lease that this window does not know is lost.
local function has(K, A)
  local window = known(K)
  if not window then return gone() end
  for _, claim in pairs(window.claims) do
    if claim.id == A[1] then return 1 end
  end
  return 0
end

-- Cut the offsets from `start` up to `stop` (-1: no bound) out of a run, and return them.
local function cut(run, start, stop, ordered)
  local out, rest = {}, {}
  if stop < 0 then stop = math.huge end
  if ordered then start = -1 end
  for k = 1, #run, 2 do
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
  for k = 1, math.max(#run, #rest) do run[k] = rest[k] end
  return out
end

-- settle: how, then for each part: token run start stop; run 0 stands for all that a lease has
-- how: 'ack' - done, and PostgreSQL has to be told; 'told' - PostgreSQL was told; 'ended' - it was told, and the claim has
-- ended there; 'release' - not done, and another may take it.
-- Replies the id of the entry in the stream or '', then 1 for each part that was settled and 0 for each of which the lease
-- has nothing any more; of all that a lease has, one for each run.
-- Acknowledgements are refused while nobody would tell PostgreSQL.
local function settle(K, A, first, t, m, window)
  -- After a gap nobody knows how long ago the last grant was.
  if A[first] == 'ack' and (t > tonumber(m[2]) + TRUSTED or tonumber(m[11]) ~= jumps) then return silent() end
  local how, ordered, replies, lines, freed, ready = A[first], m[3] == 'ordered', {''}, {}, 0, false
  local offers = {}

  -- Settle offsets of a run, from out[1] up to out[2] and so on; says whether the claim is known. `last`: nothing else of
  -- the run is left.
  local function settle_run(run, out, last)
    local number = run.claim
    local claim = window.claims[number]
    if not claim then return 0 end
    if how == 'ended' then
      remove(K, window, number, true)
    elseif #out == 0 and last then
      return 0
    elseif #out > 0 and how == 'release' then
      ready = true
      if ordered then
        run.range.start = out[1]
        offer(window, offers, number, run.range, claim.time)
      else
        for k = 1, #out, 2 do
          local range = {claim = number, start = out[k], stop = out[k + 1]}
          offer(window, offers, another(window, number), range, claim.time)
        end
      end
    elseif #out > 0 then
      for k = 1, #out, 2 do
        claim.left = claim.left - (out[k + 1] - out[k])
        freed = freed + out[k + 1] - out[k]
        if how == 'ack' then
          lines[#lines + 1] = format('%s %s %d %d', claim.id, claim.partition, out[k], out[k + 1])
        end
      end
      if claim.left <= 0 then
        remove(K, window, number)
      elseif ordered and last and out[#out] < run.range.stop then
        run.range.start = out[#out]
        offer(window, offers, number, run.range, claim.time)
        ready = true
      end
    end
    return 1
  end

  for i = first + 1, #A, 4 do
    local token, number = A[i], tonumber(A[i + 1])
    local lease = leased(window, token, t)
    if lease and number == 0 then
      for _, run in ipairs(lease) do replies[#replies + 1] = settle_run(run, run, true) end
      end_lease(K, window, token)
    else
      local run = lease and lease[number]
      if not run then
        replies[#replies + 1] = 0
      else
        local held, out = #run > 0, cut(run, tonumber(A[i + 2]), tonumber(A[i + 3]), ordered)
        replies[#replies + 1] = settle_run(run, out, #run == 0)
        if held and #run == 0 then lease.open = lease.open - 1 end
        if lease.open == 0 then
          end_lease(K, window, token)
        elseif lease.deadline > lease.own then
          -- Somebody had a look at it, to settle this.
          ends_at(K, token, lease, lease.own)
        end
      end
    end
  end
  offer_all(K, offers)
  if #lines > 0 then
    replies[1] = tell(K, window, 'done', table.concat(lines, '\n'))
    -- Nothing else of this call changes them.
    m[6] = tonumber(m[6]) + freed
    call('HSET', K[1], 'items', tonumber(m[10]) - freed, 'unflushed', m[6])
  elseif freed > 0 then
    call('HINCRBY', K[1], 'items', -freed)
  end
  if how == 'told' or how == 'ended' then tell(K, window, 'room', '') end
  if ready then
    wake(K)
    m[5] = '0'
  end
  return replies
end

-- What takes and settlements read of :meta, all at once, and what is known of it, if it is.
local function read(K)
  local m = call('HMGET', K[1], 'gen', 'until', 'mode', 'longest', 'idle', 'unflushed', 'lease', 'loading', 'most_items',
    'items', 'jumps')
  return m, m[1] and window_of(K, m[1])
end

local function take_alone(K, A)
  local m, window = read(K)
  return window and take(K, A, now(), m, window) or gone()
end

local function settle_alone(K, A)
  local m, window = read(K)
  return window and settle(K, A, 1, now(), m, window) or gone()
end

-- follow: for each part of a lease: how token run start stop
-- Settles what PostgreSQL knows already, all or nothing.
local function follow(K, A)
  local m, window = read(K)
  if not window then return gone() end
  local t = now()
  for i = 1, #A, 5 do settle(K, {A[i], A[i + 1], A[i + 2], A[i + 3], A[i + 4]}, 1, t, m, window) end
  return 1
end

-- settle_and_take: the 7 arguments of take, then those of settle
-- Replies both replies. Where the take is refused, its code stands in for its reply: what was settled stays settled.
local function settle_and_take(K, A)
  local m, window = read(K)
  if not window then return gone() end
  local t = now()
  local settled = settle(K, A, 8, t, m, window)
  if settled.err then return settled end
  local taken = take(K, A, t, m, window)
  if taken.err then taken = match(taken.err, '(WARM%u+)') end
  return {settled, taken}
end

-- renew: lease in ms or 0 for the group's, begun, then for each run of a lease: token run
-- Replies the longest lease before this one and this one in ms, whether the dispatcher was heard of lately, then 1 for each
-- run whose lease was renewed and 0 for each that is lost.
local function renew(K, A)
  local window = known(K)
  if not window then return gone() end
  local m = call('HMGET', K[1], 'longest', 'lease', 'until', 'jumps')
  local ms, t = tonumber(A[1]) > 0 and tonumber(A[1]) or tonumber(m[2]), now()
  local replies = {tonumber(m[1]), ms, t < tonumber(m[3]) and tonumber(m[4]) == jumps and 1 or 0}
  for i = 3, #A, 2 do
    local lease = leased(window, A[i], t)
    local run = lease and lease[tonumber(A[i + 1])]
    local alive = run and #run > 0 and window.claims[run.claim] ~= nil
    if alive then
      if A[2] == '1' then lease.ahead = '0' end
      lease.own = t + ms
      ends_at(K, A[i], lease, lease.own)
    end
    replies[#replies + 1] = alive and 1 or 0
  end
  if ms > tonumber(m[1]) then call('HSET', K[1], 'longest', ms) end
  return replies
end

-- expire: epoch most
-- Ends leases whose time is over. Replies how many, and ms until the next deadline or -1.
local function expire(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  local t, ordered = now(), is_ordered(K)
  local over = call('ZRANGE', K[4], '-inf', t, 'BYSCORE', 'LIMIT', 0, A[2])
  for _, token in ipairs(over) do
    local lease, lines = window.leases[token] or {}, {}
    for _, run in ipairs(lease) do
      local claim = #run > 0 and window.claims[run.claim]
      if claim then
        local count = 0
        for k = 1, #run, 2 do
          lines[#lines + 1] =
            format('%s %s %d %d %s', claim.id, claim.partition, run[k], run[k + 1], lease.ahead)
          count = count + run[k + 1] - run[k]
        end
        if ordered then
          remove(K, window, run.claim, true)
        else
          call('HINCRBY', K[1], 'items', -count)
          claim.left = claim.left - count
          if claim.left <= 0 then remove(K, window, run.claim) end
        end
      end
    end
    if #lines > 0 then tell(K, window, 'expired', table.concat(lines, '\n')) end
    end_lease(K, window, token)
  end
  local due = call('ZRANGE', K[4], 0, 0, 'WITHSCORES')
  return {#over, due[2] and math.max(0, tonumber(due[2]) - t) or -1}
end

-- trim: epoch, items acknowledged, id
-- Removes what PostgreSQL was told, up to and without this id.
local function trim(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  window.entries = window.entries - call('XTRIM', K[5], 'MINID', A[3])
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
  local window, refused = served(K, A[1])
  if not window then return refused end
  local forgotten = 0
  for i = 2, #A do
    if window.claims[A[i]] then
      remove(K, window, A[i], true)
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
  local window = known(K)
  if not window then return '' end
  local lines, flying, only = {}, {}, A[3] or ''
  if A[2] ~= '1' and not match(only, '-') then call('HINCRBY', K[1], 'withdrawals', 1) end
  if A[2] == '1' then
    for _, lease in pairs(window.leases) do
      for _, run in ipairs(lease) do
        if #run > 0 then flying[run.claim] = true end
      end
    end
  end
  for _, number in ipairs(call('HKEYS', K[3])) do
    local claim = window.claims[number]
    local named = claim and (A[1] == '' or claim.name == A[1])
    if named and (only == '' or claim.id == only or claim.partition == only) and not flying[number] then
      remove(K, window, number, true)
      lines[#lines + 1] = claim.id .. ' ' .. claim.partition
    end
  end
  return #lines > 0 and tell(K, window, 'withdrawn', table.concat(lines, '\n')) or ''
end

-- halt: no takes until a beat that knows of it. Replies the id of the entry that tells the dispatcher.
local function halt(K, A)
  local window = known(K)
  if not window then return '' end
  call('HSET', K[1], 'until', '0')
  call('HINCRBY', K[1], 'halts', 1)
  return tell(K, window, 'halted', '')
end

-- detach: epoch, whether to leave workers alone with what they have
-- Removes the window. Replies 0 where PostgreSQL has to be told something first, or where workers still have something.
local function detach(K, A)
  local window, refused = served(K, A[1])
  if not window then return refused end
  -- What workers have just done with is given back first: nobody else would.
  withdraw(K, {'', '1', ''})
  if call('XLEN', K[5]) > 0 or (A[2] ~= '1' and call('ZCARD', K[4]) > 0) then return 0 end
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
    call('ZCARD', K[4]), call('XLEN', K[5]), first[2] and tonumber(first[2]) or -1}
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
register('follow', follow, {'allow-oom'})
register('look', look, {'allow-oom'})
register('has', has, {'no-writes', 'allow-oom'})
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
