package streaming

import (
	"container/list"
	"crypto/rand"
	"sync"
	"time"
)

// tokenTime is how long a client has to come for what it asked for.
const tokenTime = time.Minute

// tokens keeps requests until their clients come for them, each once.
type tokens struct {
	places places

	mu sync.Mutex
	// byAge has requests in the order they came in, which is that in which they expire.
	byAge list.List
	of    map[string]*list.Element
}

type entry struct {
	token   string
	request any
	expires time.Time
	back    func()
}

// add keeps a request for a container or a sandbox.
func (t *tokens) add(one string, request any) (token string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for e := t.byAge.Front(); e != nil && !now.Before(e.Value.(*entry).expires); e = t.byAge.Front() {
		t.remove(e)
	}
	back, err := t.places.take(waiting, one)
	if err != nil {
		return "", err
	}
	token = rand.Text()
	if t.of == nil {
		t.of = map[string]*list.Element{}
	}
	t.of[token] = t.byAge.PushBack(&entry{token, request, now.Add(tokenTime), back})
	return token, nil
}

// take gives the request of a token, and nil where there is none any more.
func (t *tokens) take(token string) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.of[token]
	if !ok {
		return nil
	}
	if kept := t.remove(e); time.Now().Before(kept.expires) {
		return kept.request
	}
	return nil
}

func (t *tokens) remove(e *list.Element) *entry {
	kept := t.byAge.Remove(e).(*entry)
	delete(t.of, kept.token)
	kept.back()
	return kept
}
