package job

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

func TestIndexes(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "3": "3", "1,2": "1,2", "1-3": "1-3", "5,1-2,3": "1-3,5", "8-20": "8,9", "x,4,2-y": "4", "0,2,4-6,9": "0,2,4-6,9",
		"4-2": "", "12-14": "", "1-5,2-3,5-6": "1-6",
	} {
		if got := parseIndexes(in, 10).String(); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestIndexesAdded: in any order they are those of a plain set.
func TestIndexesAdded(t *testing.T) {
	for range 200 {
		var x indexes
		set := map[int]bool{}
		for range rand.IntN(40) {
			i := rand.IntN(30)
			x.add(i)
			set[i] = true
		}
		y := parseIndexes("3-7,12,20-29", 25)
		common := 0
		for i := range 30 {
			if x.has(i) != set[i] {
				t.Fatalf("%v: %d: %t", x, i, x.has(i))
			}
			if set[i] && y.has(i) {
				common++
			}
		}
		if x.size() != len(set) || x.common(y) != common || y.common(x) != common {
			t.Fatalf("%v: size %d, want %d; %d and %d of %v, want %d", x, x.size(), len(set), x.common(y), y.common(x), y, common)
		}
		if again := parseIndexes(x.String(), 30).String(); again != x.String() {
			t.Fatalf("%s is read as %s", x, again)
		}
	}
}

// TestIndexesWithoutEnd: what a few bytes name takes no memory and no time, in a policy that
// a user writes and in a status.
func TestIndexesWithoutEnd(t *testing.T) {
	all := "0-2147483646"
	policy := &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: &all}, {SucceededIndexes: &all, SucceededCount: new(int32(2))}}}
	done := indexes{}
	done.add(math.MaxInt32 - 1)
	if got := enough(policy, done, math.MaxInt32); got != "" {
		t.Error(got)
	}
	done.add(5)
	if got := enough(policy, done, math.MaxInt32); got != "Matched rules at index 1" {
		t.Errorf("%q", got)
	}
	if got := enough(policy, parseIndexes(all, math.MaxInt32), math.MaxInt32); got != "Matched rules at index 0" {
		t.Errorf("%q", got)
	}
}

func TestWaitAfter(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 4: 80 * time.Second, 7: 10 * time.Minute, 1000: 10 * time.Minute} {
		if got := waitAfter(n); got != want {
			t.Errorf("after %d failures: %v, want %v", n, got, want)
		}
	}
}
