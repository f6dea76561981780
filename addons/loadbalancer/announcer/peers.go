package announcer

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"time"

	"knarr/internal/run"
)

// A peer's kubelet is asked this often, over one connection; one that does not answer so
// many times in a row is dead. Any answer counts, whatever it says: a sign of life needs
// no trust, since who can forge it can forge ARP too.
const (
	askEvery = 300 * time.Millisecond
	misses   = 4
)

// peers are the nodes whose life matters here.
type peers struct {
	ctx     context.Context
	changed func()
	client  *http.Client
	wait    run.Group

	mu  sync.Mutex
	all map[string]*peer
}

type peer struct {
	at   string
	dead bool
	stop context.CancelFunc
}

func newPeers(ctx context.Context, changed func()) *peers {
	return &peers{ctx: ctx, changed: changed, all: map[string]*peer{}, client: &http.Client{
		Timeout: askEvery,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 1, DisableCompression: true, MaxResponseHeaderBytes: 4 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// set makes the nodes that are asked these, by name, with where their kubelets are.
func (p *peers) set(want map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, have := range p.all {
		if want[name] != have.at {
			have.stop()
			delete(p.all, name)
		}
	}
	for name, at := range want {
		if p.all[name] != nil {
			continue
		}
		ctx, stop := context.WithCancel(p.ctx)
		one := &peer{at: at, stop: stop}
		p.all[name] = one
		p.wait.Go("ask another node", func() { p.follow(ctx, one) })
	}
}

// alive reports whether a node lives: as long as nothing else is known, it does.
func (p *peers) alive(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.all[name]
	return one == nil || !one.dead
}

func (p *peers) follow(ctx context.Context, one *peer) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for missed := 0; ; {
		if p.ask(ctx, one.at) {
			missed = 0
		} else {
			missed++
		}
		p.mu.Lock()
		was := one.dead
		one.dead = missed >= misses
		news := one.dead != was
		p.mu.Unlock()
		if news {
			p.changed()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *peers) ask(ctx context.Context, at string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "https://"+at+"/healthz", nil)
	if err != nil {
		return false
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return true
}

func (p *peers) close() {
	p.set(nil)
	p.wait.Wait()
	p.client.CloseIdleConnections()
}
