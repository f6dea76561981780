package pieces

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/watchcache"
)

func TestShiftOfJoinsChecksums(t *testing.T) {
	for _, sizes := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {10, 1}, {1000, 65537}, {3, 1 << 20}} {
		a, b := bytes.Repeat([]byte("a1"), sizes[0]), bytes.Repeat([]byte("xyz"), sizes[1])
		got := multiply(crc32.ChecksumIEEE(a), shiftOf(len(b))) ^ crc32.ChecksumIEEE(b)
		if want := crc32.ChecksumIEEE(append(a, b...)); got != want {
			t.Errorf("%v: %x, want %x", sizes, got, want)
		}
	}
}

func records(n int) []*watchcache.Record {
	var out []*watchcache.Record
	for i := range n {
		out = append(out, &watchcache.Record{Key: fmt.Sprintf("ns/pod-%05d", i), Revision: int64(i + 1)})
	}
	return out
}

type counted struct{ written int }

func (c *counted) write(b []byte, rec *watchcache.Record) []byte {
	c.written++
	return fmt.Appendf(b, `{"key":%q,"revision":%d}`, rec.Key, rec.Revision)
}

// document is what a list should unpack to.
func document(recs []*watchcache.Record) string {
	var parts []string
	for _, r := range recs {
		parts = append(parts, fmt.Sprintf(`{"key":%q,"revision":%d}`, r.Key, r.Revision))
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func unpacked(t *testing.T, cut iter.Seq[Piece]) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, []byte("["), cut, []byte(","), []byte("]")); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	z.Multistream(false) // as browsers read it
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestCutMakesOnlyWhatChanged(t *testing.T) {
	var c Cache
	var w counted
	recs := records(3000)
	form := Form{Kind: "pods"}
	cut := func() string {
		t.Helper()
		return unpacked(t, c.Cut(form, recs, []byte(","), w.write))
	}
	random := rand.New(rand.NewPCG(3, 4))
	for round, change := range []func(){
		func() {},
		func() {},
		func() { recs[1500] = &watchcache.Record{Key: recs[1500].Key, Revision: 9000} },
		func() { i := random.IntN(len(recs)); recs = slices.Delete(recs, i, i+1) },
		func() { recs = slices.Insert(recs, 700, &watchcache.Record{Key: recs[699].Key + "a", Revision: 9001}) },
		func() { recs = recs[1:] },
	} {
		change()
		w.written = 0
		if got := cut(); got != document(recs) {
			t.Fatalf("round %d: unpacked to another list", round)
		}
		switch {
		case round == 0 && w.written != 3000:
			t.Errorf("first list wrote %d records", w.written)
		case round == 1 && w.written != 0:
			t.Errorf("the same list wrote %d records", w.written)
		case round > 1 && w.written > 2*maxPieceRecords:
			t.Errorf("round %d wrote %d records", round, w.written)
		}
	}
}

// Large records are not gathered: each list that makes a piece holds its text.
func TestPiecesOfLargeRecordsAreShort(t *testing.T) {
	recs := records(40)
	for size, longest := range map[int]int{3 << 20: 1, 400 << 10: 3, 1: 40} {
		for from := range recs {
			to := end(recs, from, func(*watchcache.Record) int { return size })
			if to <= from || to-from > longest {
				t.Errorf("a piece of records of %d bytes goes from %d to %d", size, from, to)
			}
		}
	}
}

func TestCacheIsBoundedAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache
		random := rand.New(rand.NewPCG(5, 6))
		write := func(b []byte, _ *watchcache.Record) []byte {
			noise := make([]byte, 4000)
			for i := range noise {
				noise[i] = byte(random.Uint32())
			}
			return append(b, noise...)
		}
		for i := range 4 {
			for range c.Cut(Form{Kind: i}, records(1000), nil, write) {
			}
			if size := sizeOf(&c); size > most {
				t.Fatalf("%d bytes kept", size)
			}
		}
		if sizeOf(&c) == 0 {
			t.Fatal("nothing is kept")
		}
		time.Sleep(3 * idle)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.kept) != 0 || c.size != 0 || c.timer != nil {
			t.Fatalf("%d pieces of %d bytes are left", len(c.kept), c.size)
		}
	})
}

func sizeOf(c *Cache) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}
