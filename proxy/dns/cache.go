package dns

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"sync"
	"time"
)

const (
	cacheSets = 256
	cacheWays = 8 // 2048 answers in all; sets are made when they are used
	// cachedMax is the longest answer that is kept, in bytes: with 2048 of them a cache takes 9 MiB at the very most.
	cachedMax = 4096
	// cachedTTLs is the largest number of records in an answer that is kept.
	cachedTTLs = 256
	// ttlMax bounds what answers say and how long they are kept, negativeMax the latter for a name that has no such
	// record, since a service that is being started is asked for again and again.
	ttlMax      = time.Hour
	negativeMax = 30 * time.Second
)

// cache keeps answers as they go to clients, but for id, spelling and age. A full set forgets the answer that would
// expire first.
type cache struct {
	seed maphash.Seed

	mu   sync.Mutex                     // guards sets
	sets *[cacheSets]*[cacheWays]cached // nil until there is an answer: many clients never ask
}

type cached struct {
	hash       uint64
	generation uint64
	stored     time.Duration
	expires    time.Duration
	key        []byte // the query as it is sent on, without id
	msg        []byte
	ttls       []uint16 // where in msg the TTLs are
}

func newCache() *cache { return &cache{seed: maphash.MakeSeed()} }

// find returns the answer to the query with this key, if the same rules judged it and it has not expired.
func (c *cache) findLocked(hash uint64, key []byte, generation uint64, now time.Duration) *cached {
	if c.sets == nil {
		return nil
	}
	set := c.sets[hash%cacheSets]
	if set == nil {
		return nil
	}
	for i := range set {
		e := &set[i]
		if e.hash == hash && e.generation == generation && now < e.expires && bytes.Equal(e.key, key) {
			return e
		}
	}
	return nil
}

// appendTo appends the answer with this key to dst, TTLs aged, and reports whether there is one.
func (c *cache) appendTo(dst, key []byte, generation uint64, now time.Duration) ([]byte, bool) {
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(hash, key, generation, now)
	if e == nil {
		return dst, false
	}
	at := len(dst)
	dst = append(dst, e.msg...)
	if age := uint32((now - e.stored) / time.Second); age > 0 {
		for _, ttl := range e.ttls {
			b := dst[at+int(ttl):]
			left := binary.BigEndian.Uint32(b)
			binary.BigEndian.PutUint32(b, left-min(age, left))
		}
	}
	return dst, true
}

// put keeps a copy of msg for ttl.
func (c *cache) put(key []byte, generation uint64, msg []byte, ttls []uint16, now, ttl time.Duration) {
	if ttl <= 0 || len(msg) > cachedMax || len(ttls) > cachedTTLs {
		return
	}
	hash := maphash.Bytes(c.seed, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(hash, key, generation, now)
	if e == nil {
		if c.sets == nil {
			c.sets = new([cacheSets]*[cacheWays]cached)
		}
		set := c.sets[hash%cacheSets]
		if set == nil {
			set = new([cacheWays]cached)
			c.sets[hash%cacheSets] = set
		}
		e = &set[0]
		for i := range set {
			if set[i].expires < e.expires {
				e = &set[i]
			}
		}
	}
	e.hash, e.generation, e.stored, e.expires = hash, generation, now, now+ttl
	e.key = append(e.key[:0], key...)
	e.msg = append(e.msg[:0], msg...)
	e.ttls = append(e.ttls[:0], ttls...)
}

func (c *cache) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets = nil
}
