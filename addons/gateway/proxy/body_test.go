package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"knarr/addons/gateway/route"
)

// What is held is the body as it was sent, counted while somebody needs it, and what cannot
// be held is still there to be read.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		name          string
		length        int
		known         bool
		most, room    int64
		whole, noRoom bool
		reserved      int64
	}{
		{"a small one", 100, true, smallBody, 0, true, false, 0},
		{"one of the size of small ones", smallBody, true, smallBody, 0, true, false, 0},
		{"a small one of unknown length", 100, false, 1 << 20, 0, true, false, 0},
		{"a long one", 100_000, true, 1 << 20, 200_000, true, false, 100_000},
		{"a long one of unknown length", 100_000, false, 1 << 20, 200_000, true, false, 131072},
		{"just as long as may be", 1 << 20, false, 1 << 20, 2 << 20, true, false, 1 << 20},
		{"longer than may be", 1<<20 + 1, false, 1 << 20, 2 << 20, false, false, 1 << 20},
		{"longer than may be, as is known", 100_000, true, 50_000, 200_000, false, false, 0},
		{"without room", 100_000, true, 1 << 20, 99_999, false, true, 0},
		{"of unknown length without room", 100_000, false, 1 << 20, 40_000, false, true, 32768},
	} {
		sent := bytes.Repeat([]byte("0123456789"), c.length/10+1)[:c.length]
		r, _ := http.NewRequest("POST", "/", io.NopCloser(bytes.NewReader(sent)))
		r.ContentLength = -1
		if c.known {
			r.ContentLength = int64(c.length)
		}
		var room atomic.Int64
		room.Store(c.room)
		b := newRequestBody(r, 0, &room)
		err := b.hold(c.most)
		if (err == errNoRoom) != c.noRoom || err != nil && !c.noRoom || b.whole != c.whole || b.reserved != c.reserved {
			t.Errorf("%s: %v, whole %v, reserved %d", c.name, err, b.whole, b.reserved)
		}
		if got := room.Load(); got != c.room-c.reserved {
			t.Errorf("%s: room for %d is left", c.name, got)
		}
		for range map[bool]int{true: 2, false: 1}[b.whole] {
			body, _ := b.open()
			if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s: %d bytes are read of %d, %v", c.name, len(got), len(sent), err)
			}
		}
		b.retain()
		b.finish()
		if got := room.Load(); got != c.room-c.reserved {
			t.Errorf("%s: given back while a copy needs it", c.name)
		}
		if b.release(); room.Load() != c.room {
			t.Errorf("%s: room for %d in the end", c.name, room.Load())
		}
	}
}

// A body that a route buffers is refused while others take all the room, and a small one
// is sent all the same.
func TestNoRoom(t *testing.T) {
	f := newFixture(t)
	f.serve("b", route.Backend{}, func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		_, _ = w.Write(got[:min(len(got), 5)])
	})
	buffered := rule("/buffered", route.Filters{}, "b")
	buffered.Buffer = true
	retried := rule("/retried", route.Filters{}, "b")
	retried.Retry.Attempts = 2
	f.rules(route.Listener{}, buffered, retried)
	f.proxy.room.Store(1000)
	long := "Content-Length: 20000\r\n\r\n" + strings.Repeat("a", 20000)
	for path, want := range map[string]int{"/buffered": 503, "/retried": 200} {
		if answer, body := f.send("POST " + path + " HTTP/1.1\r\nHost: h\r\n" + long); answer.StatusCode != want || want == 200 && body != "aaaaa" {
			t.Errorf("%s: %d %q", path, answer.StatusCode, body)
		}
	}
	if answer, body := f.send("POST /buffered HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"); answer.StatusCode != 200 || body != "abc" {
		t.Errorf("a small one: %d %q", answer.StatusCode, body)
	}
	if got := f.proxy.room.Load(); got != 1000 {
		t.Errorf("room for %d in the end", got)
	}
}
