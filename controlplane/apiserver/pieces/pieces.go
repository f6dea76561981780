package pieces

import (
	"bytes"
	"hash/crc32"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/flate"

	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/run"
)

const (
	// most bounds what is kept, in compressed bytes.
	most = 8 << 20
	// idle is how long pieces are kept that nobody asks for.
	idle = time.Minute
)

// A Piece is a run of records as they are in a list, compressed to be a part of
// a gzip document.
type Piece struct {
	deflated []byte
	crc      uint32
	shift    uint32 // of its size
	// Size is the number of bytes before compression.
	Size int
}

// A Form is how records are written: the format, and the version of the kind.
type Form struct {
	Kind   any // comparable
	Format watchcache.Format
}

type place struct {
	form  Form
	first string // key of the first record
}

type kept struct {
	records []*watchcache.Record
	piece   Piece
	used    int64 // the clock at its last use
}

// A Cache holds pieces. The zero value is ready.
type Cache struct {
	mu    sync.Mutex
	kept  map[place]*kept
	size  int
	clock int64
	timer *time.Timer
}

// Cut divides records into pieces and makes those that are not kept, one after the
// other: a list that is being written holds one of them. Where a piece ends depends on keys
// alone, so that a new record changes one piece. Write appends one record as it is
// in the list; between two records of a piece goes between.
func (c *Cache) Cut(form Form, records []*watchcache.Record, between []byte, write func(b []byte, rec *watchcache.Record) []byte) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		for from := 0; from < len(records); {
			to := end(records, from, (*watchcache.Record).Size)
			if !yield(c.piece(form, records[from:to], between, write)) {
				return
			}
			from = to
		}
	}
}

const (
	minPieceRecords = 16
	maxPieceRecords = 512
	// maxPieceBytes is how many stored bytes end a piece: each list that makes one holds
	// its text.
	maxPieceBytes = 1 << 20
)

// end is where the piece that starts at from ends.
func end(records []*watchcache.Record, from int, size func(*watchcache.Record) int) int {
	weight := size(records[from])
	for i := from + 1; i < len(records) && i < from+maxPieceRecords; i++ {
		if weight >= maxPieceBytes {
			return i
		}
		weight += size(records[i])
		if i-from >= minPieceRecords && hash(records[i].Key)%64 == 0 {
			return i
		}
	}
	return min(len(records), from+maxPieceRecords)
}

// hash is FNV-1a.
func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

func (c *Cache) piece(form Form, records []*watchcache.Record, between []byte, write func([]byte, *watchcache.Record) []byte) Piece {
	at := place{form, records[0].Key}
	c.mu.Lock()
	c.clock++
	if k := c.kept[at]; k != nil && slices.Equal(k.records, records) {
		k.used = c.clock
		c.mu.Unlock()
		return k.piece
	}
	c.mu.Unlock()
	b := plain.Get().(*bytes.Buffer)
	defer plain.Put(b)
	data := b.AvailableBuffer()
	for i, rec := range records {
		if i > 0 {
			data = append(data, between...)
		}
		data = write(data, rec)
	}
	piece := deflate(data)
	if b.Reset(); len(data) <= 4*maxPieceBytes {
		b.Write(data) // keeps the bigger buffer
		b.Reset()
	}
	c.keep(at, &kept{records: slices.Clone(records), piece: piece})
	return piece
}

var plain = sync.Pool{New: func() any { return new(bytes.Buffer) }}

type deflater struct {
	out bytes.Buffer
	w   *flate.Writer
}

var deflaters = sync.Pool{New: func() any {
	d := &deflater{}
	d.w, _ = flate.NewWriter(&d.out, 1) // the level exists
	return d
}}

func deflate(data []byte) Piece {
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.out.Reset()
	d.w.Reset(&d.out)
	d.w.Write(data) // to memory: it cannot fail
	d.w.Flush()     // ends on a byte
	return Piece{deflated: bytes.Clone(d.out.Bytes()), crc: crc32.ChecksumIEEE(data), shift: shiftOf(len(data)), Size: len(data)}
}

// keep stores a piece, and forgets those that were not used for longest when
// there are too many.
func (c *Cache) keep(at place, k *kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[place]*kept{}
	}
	c.clock++
	k.used = c.clock
	c.drop(at)
	c.kept[at] = k
	c.size += weight(k)
	for c.size > most {
		c.evict()
	}
	if c.timer == nil {
		c.timer = run.AfterFunc("pieces: forget", idle, c.age(c.clock))
	}
}

// evict drops the older half.
func (c *Cache) evict() {
	drops := make([]int64, 0, len(c.kept))
	for _, k := range c.kept {
		drops = append(drops, k.used)
	}
	slices.Sort(drops)
	c.olderThan(drops[len(drops)/2] + 1)
}

func (c *Cache) olderThan(clock int64) {
	for at, k := range c.kept {
		if k.used < clock {
			c.drop(at)
		}
	}
}

func (c *Cache) drop(at place) {
	if k := c.kept[at]; k != nil {
		c.size -= weight(k)
		delete(c.kept, at)
	}
}

func weight(k *kept) int { return len(k.piece.deflated) + 8*len(k.records) + 200 }

// age forgets what was not used since the given clock value, and comes again while anything is
// kept.
func (c *Cache) age(clock int64) func() {
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.olderThan(clock)
		c.timer = nil
		if len(c.kept) > 0 {
			c.timer = run.AfterFunc("pieces: forget", idle, c.age(c.clock+1))
		}
	}
}
