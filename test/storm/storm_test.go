// Package storm abuses a server as bad or broken clients do, and checks that it
// answers every abuse with an error, in bounded memory, while a polite client's
// requests all succeed. It reads the built knarr, and writes to temporary
// directories.
package storm

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wholeVariable asks for every attack at its full size: some ten minutes.
const wholeVariable = "KNARR_STORM"

// A storm is a server under attack.
type storm struct {
	*server
	whole bool
	// attacker is an ordinary user, on HTTP/1.1 and HTTP/2. So is who is polite.
	one, two *client
	admin    *client
	token    string
}

// size is how much of an attack is made: all of it, or the short form's share.
func (s *storm) size(short, whole int) int {
	if s.whole {
		return whole
	}
	return short
}

// A tally counts answers by what they say.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (y *tally) add(answer string, n int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.n == nil {
		y.n = map[string]int{}
	}
	y.n[answer] += n
}

func (y *tally) String() string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(y.n)) {
		all = append(all, fmt.Sprintf("%s ×%d", k, y.n[k]))
	}
	return strings.Join(all, ", ")
}

// code adds an answer, whose text must have want in it when it is not "".
func (y *tally) code(code int, body, want string) {
	answer := fmt.Sprint(code)
	switch {
	case code == 0:
		answer = "closed"
	case code == http.StatusTooManyRequests:
	case code >= 400 && !strings.Contains(body, want):
		answer += fmt.Sprintf(" %.300q", body)
	}
	y.add(answer, 1)
}

// together calls f from several goroutines, n times in all.
func together(workers, n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(workers, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// An attack is one abuse. It answers with what came back.
type attack struct {
	name string
	run  func(s *storm, y *tally)
	// want are the answers that may come back, by what they begin with.
	want []string
	// ceiling of the server's memory in MB, generous.
	ceiling int
}

func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a server")
	}
	s := &storm{server: start(t), whole: os.Getenv(wholeVariable) != ""}
	s.admin = s.client("", false)
	s.admin.must(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"storm"}}`)
	s.token = s.user(s.admin, "attacker")
	s.one, s.two = s.client(s.token, true), s.client(s.token, false)
	polite := s.bePolite(s.user(s.admin, "polite"))
	t.Logf("%-28s %5d MB, %d goroutines", "before", s.status(ownMemory), s.goroutines(s.admin))
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			var y tally
			s.calm()
			s.forgetPeak()
			mapped := s.status(mappedFiles)
			began := time.Now()
			a.run(s, &y)
			if !s.running() {
				t.Fatal("the server is gone")
			}
			peak := s.status("VmHWM") - min(mapped, s.status(mappedFiles))
			t.Logf("%-28s %5d MB peak  %6.1f s  %s", a.name, peak, time.Since(began).Seconds(), &y)
			if peak > a.ceiling {
				t.Errorf("%s: the server took %d MB; %d are the most", a.name, peak, a.ceiling)
			}
			for answer := range y.n {
				if !slices.ContainsFunc(a.want, func(w string) bool { return w == answer }) {
					t.Errorf("%s: answered %s, want one of %q", a.name, answer, a.want)
				}
			}
			if len(y.n) == 0 {
				t.Errorf("%s: no answer", a.name)
			}
		})
	}
	polite.end()
	s.settle()
	t.Logf("%-28s %5d MB and %d MB of files, %d goroutines", "after", s.status(ownMemory), s.status(mappedFiles), s.goroutines(s.admin))
}

// What the store maps of its file is in memory as long as nobody needs the room:
// half a gigabyte once attacks have written as much. It is not charged to them.
const (
	ownMemory   = "RssAnon"
	mappedFiles = "RssFile"
)

// calm waits until the server has given back what the attack before took, so that
// the next is not charged with it; for as long as a server may be expected to.
func (s *storm) calm() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	late := time.After(5 * time.Second)
	for s.status(ownMemory) > calmMegabytes {
		select {
		case <-tick.C:
		case <-late:
			return
		}
	}
}

// calmMegabytes is what a server with the attacks' objects stays below.
const calmMegabytes = 300

// idleGoroutines is what a server that nobody attacks stays below: its own loops. Those
// of the Gateway API's and the address pools' kinds made 1,620 of them.
const idleGoroutines = 2000

// settle waits until the attackers' goroutines are gone.
func (s *storm) settle() {
	s.one.CloseIdleConnections()
	s.two.CloseIdleConnections()
	deadline := time.After(clientTimeout)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := s.goroutines(s.admin); n > idleGoroutines; n = s.goroutines(s.admin) {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Errorf("the server is left with %d goroutines", n)
			return
		}
	}
}

// A polite client writes, reads and watches one object all the time.
type polite struct {
	*client
	t       *testing.T
	done    chan struct{}
	wg      sync.WaitGroup
	served  atomic.Int64
	slowest time.Duration
}

const politeObject = "/api/v1/namespaces/storm/configmaps/polite"

func (s *storm) bePolite(token string) *polite {
	p := &polite{client: s.client(token, false), t: s.t, done: make(chan struct{})}
	p.must(s.t, "POST", "/api/v1/namespaces/storm/configmaps", `{"metadata":{"name":"polite"}}`)
	events := make(chan string, 1000)
	p.wg.Go(func() { p.watch(events) })
	p.wg.Go(func() { p.work(events) })
	s.t.Cleanup(p.end)
	return p
}

func (p *polite) end() {
	select {
	case <-p.done:
		return
	default:
	}
	close(p.done)
	p.CloseIdleConnections()
	p.wg.Wait()
	p.t.Logf("%-28s %d requests and events, all served; the slowest took %s", "a polite client meanwhile", p.served.Load(), p.slowest.Round(time.Millisecond))
}

// work is one write, read and wait for the event after the other.
func (p *polite) work(events <-chan string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-p.done:
			return
		case <-tick.C:
		}
		began := time.Now()
		value := fmt.Sprint(n)
		code, body := p.do(request{method: "PATCH", path: politeObject, kind: "application/merge-patch+json",
			body: strings.NewReader(`{"data":{"n":"` + value + `"}}`)})
		if code == http.StatusOK {
			code, body = p.send("GET", politeObject, "")
		}
		if code != http.StatusOK || !strings.Contains(body, `"n":"`+value+`"`) {
			p.t.Errorf("a polite client was answered %d %s", code, body)
			return
		}
		for late := time.After(clientTimeout); ; {
			var got string
			select {
			case got = <-events:
			case <-late:
				p.t.Errorf("a polite client's watch did not tell of %s", value)
				return
			case <-p.done:
				return
			}
			if got == value {
				break
			}
		}
		p.served.Add(3)
		p.slowest = max(p.slowest, time.Since(began))
	}
}

// watch passes on what the object says, until the end.
func (p *polite) watch(events chan<- string) {
	c := &http.Client{Transport: p.Transport}
	req, err := http.NewRequest("GET", p.base+"/api/v1/namespaces/storm/configmaps?watch=1&fieldSelector=metadata.name%3Dpolite", nil)
	if err != nil {
		p.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	resp, err := c.Do(req)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer resp.Body.Close()
	go func() { // its end is that of the body
		<-p.done
		resp.Body.Close()
	}()
	d := json.NewDecoder(resp.Body)
	for {
		var event struct {
			Type   string
			Object struct{ Data map[string]string }
		}
		err := d.Decode(&event)
		select {
		case <-p.done:
			return
		default:
		}
		if err != nil || event.Type == "ERROR" {
			p.t.Errorf("a polite client's watch ended: %v %v", event, err)
			return
		}
		select {
		case events <- event.Object.Data["n"]:
		case <-p.done:
			return
		}
	}
}
