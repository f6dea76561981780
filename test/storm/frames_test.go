package storm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameAttacks speak HTTP/2 as no client does.
var frameAttacks = []attack{
	{"streams reset at once", resets, []string{"streams", "closed"}, 900},
	{"heads that go on", continuations, []string{"closed", "frames"}, 900},
	{"pings and settings", pings, []string{"closed", "frames"}, 900},
	{"windows of nothing", windows, []string{"open", "429"}, 900},
	{"objects under no window", unread, []string{"open", "429", "seats"}, 900},
}

// A speaker sends frames, and throws away what comes.
type speaker struct {
	conn *tls.Conn
	*http2.Framer
	head  bytes.Buffer
	enc   *hpack.Encoder
	token string
}

func (s *storm) speak(reads bool) (*speaker, error) {
	c, err := s.dial("h2")
	if err != nil {
		return nil, err
	}
	p := &speaker{conn: c, Framer: http2.NewFramer(c, c), token: s.token}
	p.enc = hpack.NewEncoder(&p.head)
	if reads {
		go func() { _, _ = io.Copy(io.Discard, c) }()
	}
	_ = c.SetWriteDeadline(time.Now().Add(clientTimeout))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := p.WriteSettings(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// get is the head of a request.
func (p *speaker) get(path string) []byte {
	p.head.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "a"}, {":path", path}, {"authorization", "Bearer " + p.token}} {
		_ = p.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return p.head.Bytes()
}

// until has each of some connections send frames until enough were sent in all or
// the server had enough; it connects anew then.
func (s *storm) frames(y *tally, what string, total int, one func(p *speaker, n int) (sent int, err error)) {
	together(8, 8, func(int) {
		for left := total / 8; left > 0; {
			p, err := s.speak(true)
			if err != nil {
				s.t.Errorf("connect: %v", err)
				return
			}
			n, err := one(p, left)
			if err != nil {
				y.add("closed", 1)
			}
			y.add(what, n)
			left -= max(n, 1)
			_ = p.conn.Close()
		}
	})
}

func resets(s *storm, y *tally) {
	s.frames(y, "streams", s.size(20_000, 100_000), func(p *speaker, n int) (int, error) {
		for i := range n {
			id := uint32(2*i + 1)
			if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.get(configMaps), EndStream: true, EndHeaders: true}); err != nil {
				return i, err
			}
			if err := p.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
				return i, err
			}
		}
		return n, nil
	})
}

func continuations(s *storm, y *tally) {
	s.frames(y, "frames", s.size(20_000, 100_000), func(p *speaker, n int) (int, error) {
		if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.get(configMaps), EndStream: true}); err != nil {
			return 0, err
		}
		for i := range n {
			p.head.Reset()
			_ = p.enc.WriteField(hpack.HeaderField{Name: "x", Value: "0123456789012345678901234567890123456789", Sensitive: true})
			if err := p.WriteContinuation(1, false, p.head.Bytes()); err != nil {
				return i, err
			}
		}
		return n, nil
	})
}

func pings(s *storm, y *tally) {
	s.frames(y, "frames", s.size(50_000, 1_000_000), func(p *speaker, n int) (int, error) {
		for i := range n {
			err := p.WritePing(false, [8]byte{byte(i)})
			if i%10 == 0 {
				err = errors.Join(err, p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)}))
			}
			if err != nil {
				return i, err
			}
		}
		return n, nil
	})
}

// windows asks for long lists and never lets a byte of them come.
func windows(s *storm, y *tally) {
	s.big()
	defer s.shut(y, configMaps)()
	s.ask(y)
}

// unread asks for single objects and for the OpenAPI document in the same way.
// None of them keeps its seat: the attacker's own next request is served.
func unread(s *storm, y *tally) {
	s.big()
	defer s.shut(y, configMaps+"/big0", "/openapi/v2")()
	s.ask(y)
	late := time.After(clientTimeout)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if code, _ := s.two.send("GET", politeObject, ""); code == http.StatusOK {
			y.add("seats", 1)
			return
		}
		select {
		case <-tick.C:
		case <-late:
			s.t.Error("the seats did not come back")
			return
		}
	}
}

// shut asks for paths on many streams whose windows stay shut.
func (s *storm) shut(y *tally, paths ...string) (release func()) {
	var all []*speaker
	for range s.size(5, 20) {
		p, err := s.speak(true)
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, p)
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i := range 100 {
			if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: p.get(paths[i%len(paths)]), EndStream: true, EndHeaders: true}); err != nil {
				s.t.Errorf("ask: %v", err)
			}
		}
		y.add("open", 1)
	}
	return func() {
		for _, p := range all {
			_ = p.conn.Close()
		}
	}
}
