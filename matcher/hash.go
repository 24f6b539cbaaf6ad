package matcher

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// hashKey makes the hashes of names unpredictable, so that nobody can choose names that collide. It is drawn once
// for the process. A hash only ever finds a candidate: names are then compared byte for byte.
var hashKey = func() (k [6]uint64) {
	var b [48]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	for i := range k {
		k[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return k
}()

// hashHost hashes a name of any length. One of usual length takes no loop: its four words repeat bytes if it is shorter
// than they are, so that the processor need not guess how many there are.
func hashHost(name []byte) uint64 {
	if n := len(name); n >= 8 && n <= usualBytes {
		b, c := inner(n)
		w0, w1, w2, w3 := fourWords(&name[0], n, b, c)
		return mixFour(w0, w1, w2, w3, n)
	}
	return hashOf(name)
}

// usualBytes is the length up to which four words hold all of a name.
const usualBytes = 32

// inner returns where the two inner of the four words of a name of 8 to usualBytes bytes end. It does not branch, for which
// way to take could not be guessed.
func inner(n int) (b, c int) { return 8 + positive(n-16), 8 + positive(n-24) }

// positive returns n, or 0 if that is less.
func positive(n int) int { return n &^ (n >> 63) }

// fourWords returns the words of a name of n bytes from the right to the left; b and c are from inner. The name must have n
// bytes behind first: nothing checks that here.
func fourWords(first *byte, n, b, c int) (w0, w1, w2, w3 uint64) {
	return wordAt(first, n-8), wordAt(first, b-8), wordAt(first, c-8), wordAt(first, 0)
}

// wordAt returns the eight bytes that begin so many bytes behind first.
func wordAt(first *byte, behind int) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(unsafe.Pointer(first), behind))[:])
}

// mixFour hashes the four words of a name and its length. Both products are had at the same time.
func mixFour(w0, w1, w2, w3 uint64, n int) uint64 {
	hi, lo := bits.Mul64(w0^hashKey[0], w1^hashKey[3])
	state := hi ^ lo
	hi, lo = bits.Mul64(w2^hashKey[4], w3^hashKey[5])
	return finish(state, hi^lo, n)
}

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
