package matcher

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// hashKey makes the hashes of names unpredictable, so that nobody can choose names that collide. It is drawn once
// for the process. A hash only ever finds a candidate: names are then compared byte for byte.
var hashKey = func() (k [3]uint64) {
	var b [24]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	for i := range k {
		k[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return k
}()

// hashOf hashes a name: full words from the right, then the leftmost eight bytes and the length. So the hashes of all
// that the name ends in can be had in one pass, see parents.
func hashOf(name []byte) uint64 {
	state := hashKey[0]
	for end := len(name); end > 8; end -= 8 {
		state = mix(state, word(name, end))
	}
	return finish(state, leftmost(name), len(name))
}

// leftmost returns the first eight bytes of name, or all if they are fewer.
func leftmost(name []byte) uint64 {
	if len(name) >= 8 {
		return word(name, 8)
	}
	var w uint64
	for i := range name {
		w |= uint64(name[i]) << (8 * i)
	}
	return w
}

// mix adds a word of a name to a hash; finish adds the last one and the length of the whole.
// The step is that of wyhash: a 64 by 64 bit product, folded.
func mix(state, word uint64) uint64 {
	hi, lo := bits.Mul64(state^word, hashKey[1])
	return hi ^ lo
}

func finish(state, word uint64, n int) uint64 {
	hi, lo := bits.Mul64(state^word, hashKey[2]^uint64(n))
	return hi ^ lo
}
