package spdystream

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/adler32"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The dictionary is the specification's: this is the checksum that zlib knows it by.
func TestDictionary(t *testing.T) {
	if d := dictionary(); len(d) != 1423 || adler32.Checksum(d) != 0xe3c6a7c2 {
		t.Errorf("%d bytes, %x", len(d), adler32.Checksum(d))
	}
}

// compressed is a block as a peer makes it that compresses: names, each with its value.
func compressed(count uint32, texts ...string) []byte {
	var b bytes.Buffer
	z := must(zlib.NewWriterLevelDict(&b, zlib.BestCompression, dictionary()))
	_ = binary.Write(z, binary.BigEndian, count)
	for _, s := range texts {
		_ = binary.Write(z, binary.BigEndian, uint32(len(s)))
		_, _ = io.WriteString(z, s)
	}
	_ = z.Flush()
	return b.Bytes()
}

func TestHeaders(t *testing.T) {
	many := http.Header{}
	for i := range maxNames {
		many["Name-"+strconv.Itoa(i)] = []string{strings.Repeat("x", 900)}
	}
	var f inflater
	for i, want := range []http.Header{{}, {"Port": {"80"}}, {"A": {"1", "", "3"}, "B": {""}}, many, {"Port": {"80"}}, many} {
		got, cost, err := f.headers(appendHeaders(nil, want, i == 0))
		if err != nil || !maps.EqualFunc(got, want, func(a, b []string) bool { return strings.Join(a, ",") == strings.Join(b, ",") }) {
			t.Fatalf("%d: %v, %v", i, got, err)
		}
		if cost < 4 || len(f.source) > maxTail {
			t.Errorf("%d: cost %d, %d bytes are left", i, cost, len(f.source))
		}
	}
}

// bombs are small blocks that ask for much.
var bombs = sync.OnceValue(func() map[string][]byte {
	nuls, names := strings.Repeat("\x00", 16<<20), []string{}
	for range 1000 {
		names = append(names, "a", "")
	}
	huge := binary.BigEndian.AppendUint32(nil, 1)
	huge = append(binary.BigEndian.AppendUint32(huge, 1), 'a')
	huge = binary.BigEndian.AppendUint32(huge, 1<<32-1)
	var length bytes.Buffer
	z := must(zlib.NewWriterLevelDict(&length, zlib.BestCompression, dictionary()))
	_, _ = z.Write(huge)
	_ = z.Flush()
	return map[string][]byte{
		"value of 16 MB":            compressed(1, "a", nuls),
		"value of many values":      compressed(1, "a", nuls[:60<<10]),
		"1,000 names":               compressed(1000, names...),
		"4,294,967,295 names":       compressed(1<<32 - 1),
		"names that are not there":  compressed(64, "a", "b"),
		"a length without a text":   length.Bytes(),
		"more than its headers":     append(compressed(1, "a", "b"), make([]byte, 60<<10)...),
		"not compressed":            make([]byte, 1000),
		"not by the dictionary":     {0x78, 0x9c, 1, 2, 3, 4},
		"nothing":                   {},
		"a name in upper case":      compressed(1, "A", "b"),
		"a name of no letters":      compressed(1, "", "b"),
		"more than a control frame": make([]byte, maxControl),
	}
})

// A bomb is answered by GOAWAY, and takes no memory.
func TestBombs(t *testing.T) {
	for name, block := range bombs() {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			defer b.Close()
			frame := appendControl(nil, synStream, 0, append([]byte{0, 0}, block...), 1, 0)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c := served(t, a, true, silent)
			go func() { _, _ = b.Write(frame) }()
			_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
			got, err := io.ReadAll(b)
			if want := appendControl(nil, goAway, 0, nil, 0, goAwayProtocolError); !bytes.Equal(got, want) || err != nil {
				t.Errorf("%x, %v", got, err)
			}
			<-c.CloseChan()
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
				t.Errorf("it took %d bytes", n)
			}
		})
	}
}

// The headers of all streams have a bound together, whatever they are.
func TestHeadersOfManyStreams(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	handled := make(chan struct{})
	c := served(t, a, true, func(*Stream) { <-handled })
	defer close(handled)
	go func() {
		h := http.Header{"A": {strings.Repeat("x", 50<<10)}}
		for id := uint32(1); id < 200; id += 2 {
			block := append([]byte{0, 0}, appendHeaders(nil, h, id == 1)...)
			_, _ = b.Write(appendControl(nil, synStream, 0, block, id, 0))
		}
	}()
	got := make([]byte, 16)
	_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(b, got); err != nil || got[3] != rstStream || got[15] != statusRefused {
		t.Errorf("%x, %v", got, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headers > maxHeaders || c.headers < maxHeaders/2 {
		t.Error(c.headers)
	}
}

// Frames that are against the protocol end the connection.
func TestWrongFrames(t *testing.T) {
	for name, b := range map[string][]byte{
		"another version":   {0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1},
		"data of stream 0":  appendData(nil, 0, 0, []byte("x")),
		"a short ping":      {0x80, 3, 0, 6, 0, 0, 0, 3, 0, 0, 1},
		"a long reset":      appendControl(nil, rstStream, 0, []byte("x"), 1, 1),
		"a stream 0":        appendControl(nil, rstStream, 0, nil, 0, 1),
		"a short stream":    {0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1},
		"headers too short": appendControl(nil, moreHeaders, 0, nil),
	} {
		r := &reader{Reader: bufio.NewReader(bytes.NewReader(b))}
		f, err := r.frame()
		if _, ok := err.(protocolError); !ok {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// Whatever the other end sends, nothing is left when it has left.
func FuzzFrames(f *testing.F) {
	add := func(frames ...[]byte) { f.Add(true, bytes.Join(frames, nil)) }
	open := appendControl(nil, synStream, 0, append([]byte{0, 0}, appendHeaders(nil, http.Header{"A": {"b"}}, true)...), 1, 0)
	add(open, appendData(nil, 1, 0, []byte("hello")), appendData(nil, 1, flagFin, nil))
	add(open, appendControl(nil, moreHeaders, flagFin, appendHeaders(nil, nil, false), 1))
	add(open, appendControl(nil, rstStream, 0, nil, 1, statusCancel), appendControl(nil, ping, 0, nil, 1))
	add(appendControl(nil, goAway, 0, nil, 0, goAwayOK), open)
	f.Add(false, appendControl(nil, synReply, 0, appendHeaders(nil, nil, true), 1))
	for _, block := range bombs() {
		add(appendControl(nil, synStream, 0, append([]byte{0, 0}, block[:min(len(block), 4<<10)]...), 1, 0))
	}
	f.Fuzz(func(t *testing.T, server bool, sent []byte) {
		a, b := net.Pipe()
		c := must(NewConnection(a, server))
		served := make(chan struct{})
		go func() { c.Serve(echo); close(served) }()
		go func() { _, _ = io.Copy(io.Discard, b) }()
		var s *Stream
		if !server {
			s, _ = c.CreateStream(nil, nil, false)
		}
		_ = b.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := b.Write(sent); err != nil && err != io.ErrClosedPipe {
			t.Error(err)
		}
		_ = b.Close()
		<-served
		if s != nil {
			_ = s.Wait()
			_, _ = io.Copy(io.Discard, s)
		}
	})
}
