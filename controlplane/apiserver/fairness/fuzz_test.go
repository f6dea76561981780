package fairness

import (
	"testing"
	"time"

	"knarr/controlplane/apiserver/request"
)

// However large the store, and whatever the query says, a request takes one seat
// at least and no more than its level gives, for a bounded time.
func FuzzWidth(f *testing.F) {
	f.Add(5000, int64(8_000_000), "limit=500&continue=x", false, 9, 200)
	f.Add(1, int64(1)<<62, "limit=-1&resourceVersion=0&sendInitialEvents=true", true, 1, 0)
	f.Add(0, int64(200_000), "limit=%zz;", true, 100, 1<<40)
	f.Fuzz(func(t *testing.T, objects int, size int64, query string, watch bool, most, watching int) {
		if objects < 0 || size < 0 || most < 1 || watching < watchesPerSeat || watching > 1<<32 {
			t.Skip("cannot be")
		}
		info := &request.Info{Verb: "list"}
		if watch {
			info.Verb = "watch"
		}
		if n := listSeats(objects, size, info, query, most); n < 1 || n > most {
			t.Fatalf("%d seats of %d", n, most)
		}
		w := writeWidth(watching, most)
		if w.seats < 1 || w.seats > most || w.after < 0 || w.after > time.Duration(watching)*perSeat {
			t.Fatalf("%+v of %d for %d watches", w, most, watching)
		}
	})
}
