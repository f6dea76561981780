package wsframes

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/websocket"
)

// text is the opcode of frames of text.
const text = 1

// frame is what a client sends: masked.
func frame(opcode byte, payload []byte) []byte {
	b := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < length2:
		b = append(b, masked|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, masked|length2), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, masked|length8), uint64(n))
	}
	key := []byte{1, 2, 3, 4}
	b = append(b, key...)
	for i, c := range payload {
		b = append(b, c^key[i&3])
	}
	return b
}

// read gives the payloads of frames, and what follows that is no whole frame.
func read(b []byte) (opcodes []byte, payloads [][]byte, rest []byte) {
	for {
		whole := b
		if len(b) < 2 {
			return opcodes, payloads, whole
		}
		opcode, size, isMasked := b[0]&0xf, uint64(b[1]&^masked), b[1]&masked != 0
		b = b[2:]
		switch {
		case size == length2 && len(b) >= 2:
			size, b = uint64(binary.BigEndian.Uint16(b)), b[2:]
		case size == length8 && len(b) >= 8:
			size, b = binary.BigEndian.Uint64(b), b[8:]
		case size >= length2:
			return opcodes, payloads, whole
		}
		key := []byte{0, 0, 0, 0}
		if isMasked {
			if len(b) < 4 {
				return opcodes, payloads, whole
			}
			key, b = b[:4], b[4:]
		}
		if uint64(len(b)) < size {
			return opcodes, payloads, whole
		}
		payload := bytes.Clone(b[:size])
		for i := range payload {
			payload[i] ^= key[i&3]
		}
		opcodes, payloads, b = append(opcodes, opcode), append(payloads, payload), b[size:]
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// TestSplit: long frames come as several with their stream's number, what they have is the same;
// all others come as they are.
func TestSplit(t *testing.T) {
	data := random(1 << 20)
	encoded := []byte("0" + base64.StdEncoding.EncodeToString(data))
	for name, c := range map[string]struct {
		frame []byte
		same  bool
	}{
		"empty":          {frame(2, nil), true},
		"short":          {frame(2, data[:100]), true},
		"two bytes":      {frame(2, data[:30000]), true},
		"as long as may": {frame(2, data[:maxFrame]), true},
		"one more":       {frame(2, data[:maxFrame+1]), false},
		"long":           {frame(2, data), false},
		"base64":         {frame(text, encoded), false},
		"control":        {frame(9, data[:100]), true},
		"long control":   {frame(9, data[:maxFrame+1]), true},
		"not masked":     {append([]byte{0x82, 126, 0xff, 0xff}, data[:0xffff]...), true},
	} {
		for how, reader := range map[string]func(io.Reader) io.Reader{
			"at once": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "by halves": iotest.HalfReader, "with its end": iotest.DataErrReader,
		} {
			in := bytes.Join([][]byte{frame(2, []byte("before")), c.frame, frame(2, []byte("after"))}, nil)
			got, err := io.ReadAll(Split(reader(bytes.NewReader(in))))
			if err != nil {
				t.Fatalf("%s %s: %v", name, how, err)
			}
			if c.same {
				if !bytes.Equal(got, in) {
					t.Errorf("%s %s: other bytes", name, how)
				}
				continue
			}
			opcodes, payloads, rest := read(got)
			wantOps, want, _ := read(in)
			if last := len(payloads) - 1; last < 3 || string(payloads[0]) != "before" || string(payloads[last]) != "after" || len(rest) > 0 {
				t.Fatalf("%s %s: %d frames, %d bytes more", name, how, len(payloads), len(rest))
			}
			all := want[1][:1:1]
			for i, p := range payloads[1 : len(payloads)-1] {
				if p[0] != want[1][0] || len(p) > maxFrame || len(p) == 1 || opcodes[i+1] != wantOps[1] {
					t.Fatalf("%s %s: frame %d of %d bytes, stream %d", name, how, i, len(p), p[0])
				}
				if name == "base64" {
					if _, err := base64.StdEncoding.DecodeString(string(p[1:])); err != nil {
						t.Fatalf("%s: %v", how, err)
					}
				}
				all = append(all, p[1:]...)
			}
			if !bytes.Equal(all, want[1]) {
				t.Errorf("%s %s: something else is in it", name, how)
			}
		}
	}
}

// TestCut: of a frame that is cut off all comes that is there, and then the end.
func TestCut(t *testing.T) {
	whole := frame(2, random(100_000))
	for _, n := range []int{0, 1, 3, 9, 13, 14, 15, 16, 50_000, len(whole) - 1} {
		got, err := io.ReadAll(Split(bytes.NewReader(whole[:n])))
		if err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, payloads, rest := read(got); n < 14 && !bytes.Equal(got, whole[:n]) || n > 15 && (len(rest) > 0 || len(bytes.Join(payloads, nil)) != n-14+len(payloads)-1) {
			t.Errorf("%d bytes: %d frames, %d bytes more", n, len(payloads), len(rest))
		}
	}
}

// TestLibrary: the library whose memory this is about reads what is split.
func TestLibrary(t *testing.T) {
	got := make(chan []byte, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		websocket.Server{Handler: func(ws *websocket.Conn) {
			defer close(got)
			ws.MaxPayloadBytes = maxFrame
			for {
				var b []byte
				if err := websocket.Message.Receive(ws, &b); err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
				got <- b
			}
		}}.ServeHTTP(hijacker{w}, r)
	}))
	defer s.Close()
	ws, err := websocket.Dial(strings.Replace(s.URL, "http", "ws", 1), "", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	data := append([]byte{7}, random(3<<20)...)
	for range 2 {
		if err := websocket.Message.Send(ws, data); err != nil {
			t.Fatal(err)
		}
	}
	ws.Close()
	all := []byte{7}
	for b := range got {
		if b[0] != 7 {
			t.Fatalf("stream %d", b[0])
		}
		all = append(all, b[1:]...)
	}
	if !bytes.Equal(all, append(data, data[1:]...)) {
		t.Errorf("%d bytes came, or others", len(all))
	}
}

type hijacker struct{ http.ResponseWriter }

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, buffers, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		Of(c, buffers)
	}
	return c, buffers, err
}

func FuzzSplit(f *testing.F) {
	f.Add(frame(2, random(40_000)))
	f.Add(append(frame(text, []byte("0abcd")), frame(8, nil)...))
	f.Add([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := io.ReadAll(Split(bytes.NewReader(in)))
		if err != nil || len(got) > 2*len(in)+20 {
			t.Fatalf("%d of %d bytes: %v", len(got), len(in), err)
		}
		_, want, _ := read(in)
		_, have, _ := read(got)
		if len(have) < len(want) {
			t.Errorf("%d frames of %d", len(have), len(want))
		}
	})
}
