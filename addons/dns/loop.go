package dns

import (
	"crypto/rand"
	"strings"
	"sync"
)

// loops are the names that servers are asked for to see whether they ask this one.
type loops struct {
	mu     sync.Mutex
	names  map[string]func()
	report func(server, zone string)
}

// expect makes a name that nobody else knows, below a zone; back is called when it
// comes back, until forget is called.
func (l *loops) expect(back func(), zone string) (name string, forget func()) {
	name = strings.ToLower(rand.Text()) + ".loop." + strings.TrimPrefix(zone, ".")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]func(){}
	}
	l.names[name] = back
	return name, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.names, name)
	}
}

// seen reports whether a question is one of this process's own that came back.
func (l *loops) seen(name string) bool {
	l.mu.Lock()
	back := l.names[name]
	l.mu.Unlock()
	if back == nil {
		return false
	}
	back()
	return true
}

// found reports a server that leads back here.
func (l *loops) found(server, zone string) {
	l.mu.Lock()
	report := l.report
	l.mu.Unlock()
	if report != nil {
		report(server, zone)
	}
}
