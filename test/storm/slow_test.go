package storm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// slowAttacks are of clients that take their time, and of many at once.
var slowAttacks = []attack{
	{"heads drop by drop", slowHeads, []string{"open", "closed"}, 700},
	{"bodies drop by drop", slowBodies, []string{"open", "429"}, 900},
	{"idle connections", idle, []string{"open"}, 1000},
	{"watches in a loop", watches, []string{"200", "429"}, 900},
	{"watches that read nothing", unreadWatches, []string{"open", "429"}, 1200},
	{"lists that read nothing", unreadLists, []string{"open", "429"}, 1200},
	{"lists of big objects", bigLists, []string{"200", "429", "late"}, 1500},
}

// until waits until the path is served.
func (s *storm) until(path string) {
	for range 10_000 {
		if code, _ := s.admin.send("GET", path, ""); code == http.StatusOK {
			return
		}
	}
	s.t.Fatalf("%s is not served", path)
}

// hold opens n connections and has each say something, then tells them all at
// once whether they were answered meanwhile.
func (s *storm) hold(y *tally, protocol string, n int, say func(i int, c net.Conn) error) (release func()) {
	conns := make([]net.Conn, n)
	together(16, n, func(i int) {
		c, err := s.dial(protocol)
		if err == nil {
			conns[i] = c
			err = say(i, c)
		}
		if err != nil {
			y.add("closed", 1)
			return
		}
		y.add("open", 1)
	})
	return func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
}

func slowHeads(s *storm, y *tally) {
	defer s.hold(y, "http/1.1", s.size(300, 2000), func(_ int, c net.Conn) error {
		for _, b := range []byte("GET /api/v1/pods HTTP/1.1\r\nHost: a\r\nX") {
			if _, err := c.Write([]byte{b}); err != nil {
				return err
			}
		}
		return nil
	})()
	if !s.whole {
		return
	}
	c, err := s.dial("http/1.1")
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n")
	if _, err := io.ReadAll(c); err != nil { // the server's patience ends
		s.t.Errorf("a head that never ends: %v", err)
	}
}

func slowBodies(s *storm, y *tally) {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{", configMaps, s.token)
	defer s.hold(y, "http/1.1", s.size(500, 2000), func(_ int, c net.Conn) error {
		_, err := io.WriteString(c, head)
		return err
	})()
	s.ask(y)
}

// ask is what the attacker's own requests, made at once, are answered meanwhile.
func (s *storm) ask(y *tally) {
	n := s.size(3, 20)
	together(n, n, func(int) {
		if code, body := s.two.send("GET", politeObject, ""); code != http.StatusOK {
			y.code(code, body, "")
		}
	})
}

func idle(s *storm, y *tally) {
	defer s.hold(y, "h2", s.size(500, 5000), func(_ int, c net.Conn) error {
		_, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		return err
	})()
}

func watches(s *storm, y *tally) {
	together(50, s.size(500, 5000), func(i int) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "GET", s.two.base+configMaps+"?watch=1&allowWatchBookmarks=true", nil)
		req.Header.Set("Authorization", "Bearer "+s.token)
		resp, err := s.two.Do(req)
		if err != nil {
			y.code(0, err.Error(), "")
			return
		}
		defer resp.Body.Close()
		y.add(fmt.Sprint(resp.StatusCode), 1)
		_, _ = bufio.NewReader(resp.Body).ReadByte()
	})
}

// big makes objects that are 10 MB together.
func (s *storm) big() {
	text := random(500_000)
	for i := range 20 {
		code, body := s.admin.send("POST", configMaps, fmt.Sprintf(`{"metadata":{"name":"big%d","labels":{"big":"yes"}},"data":{"a":%q}}`, i, text))
		if code != http.StatusCreated && code != http.StatusConflict {
			s.t.Fatalf("%d %s", code, body)
		}
	}
}

func unreadWatches(s *storm, y *tally) {
	s.big()
	head := fmt.Sprintf("GET %s?watch=1&resourceVersion=0 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n", configMaps, s.token)
	defer s.hold(y, "http/1.1", s.size(100, 1000), func(_ int, c net.Conn) error {
		_, err := io.WriteString(c, head)
		return err
	})()
	for i := range s.size(100, 1000) {
		code, body := s.admin.do(request{"PATCH", fmt.Sprintf("%s/big%d", configMaps, i%20), "application/merge-patch+json", nil,
			strings.NewReader(fmt.Sprintf(`{"data":{"n":"%d"}}`, i))})
		if code != http.StatusOK {
			s.t.Fatalf("%d %s", code, body)
		}
	}
}

func unreadLists(s *storm, y *tally) {
	s.big()
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n", configMaps, s.token)
	defer s.hold(y, "http/1.1", s.size(300, 1000), func(_ int, c net.Conn) error {
		_, err := io.WriteString(c, head)
		return err
	})()
	s.ask(y)
}

func bigLists(s *storm, y *tally) {
	s.big()
	together(s.size(100, 1000), s.size(200, 1000), func(i int) {
		kinds := []string{"application/json", "application/vnd.kubernetes.protobuf", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
		header := http.Header{"Accept": {kinds[i%3]}}
		if i%2 == 0 {
			header.Set("Accept-Encoding", "gzip")
		}
		began := time.Now()
		code, body := s.two.do(request{"GET", configMaps, "", header, strings.NewReader("")})
		if code == 0 && time.Since(began) > longest {
			y.add("late", 1)
			return
		}
		y.code(code, body, "")
	})
}

// longest is nearly the minute that a request may take: an answer that has begun
// can only be cut off then.
const longest = 55 * time.Second
