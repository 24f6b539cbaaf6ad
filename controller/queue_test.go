package controller

import (
	"fmt"
	"testing"
)

// TestQueueIsFair checks that a key is worked on before those that come after it, however often others come again.
func TestQueueIsFair(t *testing.T) {
	const others = 100
	for range 50 {
		q := newQueue()
		for i := range others {
			q.add(fmt.Sprint(i), 0)
		}
		q.add("late", 0)
		for i := 0; ; i++ {
			key, ok := q.next(t.Context())
			if !ok {
				t.Fatal("the test has ended")
			}
			q.done(key)
			if key == "late" {
				break
			}
			if i == others {
				t.Fatalf("it is not among the first %d", others+1)
			}
			q.add(key, 0)
		}
	}
}
