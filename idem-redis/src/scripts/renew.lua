-- Moves the lease, and the expiry where it would be before its end. ARGV[4] number and token, ARGV[5] lease.
local value = redis.call('GET', KEYS[1])
if not value then return {0} end
local now = now_of(value)
if not now then return {2} end
if not is_record(value) then return {0, value, now} end
local base, ttl, _, claimed, settled, expiry = struct.unpack('>i8i8i8i8i8i8', value, 29)
local owner = string.sub(value, 5, 8) .. string.sub(value, 13, 28)
if string.sub(value, 3, 3) ~= 'p' or owner ~= ARGV[4] or now >= expiry then return {0, value, now} end
local lease_end = after(now, ARGV[5])
local keeps = expiry >= lease_end
if not keeps then
  base, expiry = now, lease_end
  ttl = time_to_live(now, expiry)
end
local renewed = string.sub(value, 1, 3) .. string.char(bit.bor(string.byte(value, 4), 1)) .. string.sub(value, 5, 28)
  .. struct.pack('>i8i8i8i8i8i8', base, ttl, lease_end, claimed, settled, expiry) .. string.sub(value, 77)
if keeps then
  redis.call('SET', KEYS[1], renewed, 'KEEPTTL')
else
  redis.call('SET', KEYS[1], renewed, 'PX', string.format('%.0f', ttl))
end
return {1}
