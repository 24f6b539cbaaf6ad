package refusal

import "math/rand/v2"

// crockford is the base 32 alphabet without letters that are read as digits or as each other.
const crockford = "0123456789abcdefghjkmnpqrstvwxyz"

// NewDecisionID returns 80 random bits as 16 letters and digits. Among the first thousand million ids two are equal
// with a probability of less than one in a million. It makes no system call: the runtime's ChaCha8, which is seeded
// by the system once a thread, is behind it. It may be called by any number of goroutines.
func NewDecisionID() string {
	var id [16]byte
	for half := range 2 {
		bits := rand.Uint64() // 40 bits of it
		for i := range 8 {
			id[half*8+i] = crockford[bits>>(5*i)&31]
		}
	}
	return string(id[:])
}
