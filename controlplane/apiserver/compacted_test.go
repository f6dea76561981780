package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/storage"
)

// severed is a store whose watches can be cut off.
type severed struct {
	*storage.Memory
	mu   sync.Mutex
	away bool
	ends []context.CancelFunc
}

func (s *severed) Watch(ctx context.Context, prefix string, from int64) (<-chan storage.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errors.New("connection refused")
	}
	ctx, end := context.WithCancel(ctx)
	s.ends = append(s.ends, end)
	return s.Memory.Watch(ctx, prefix, from)
}

func (s *severed) sever(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	for _, end := range s.ends {
		end()
	}
	s.ends = nil
}

var tooOld = regexp.MustCompile(`^too old resource version: \d+ \(\d+\)$`)

const (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	configMapKey   = "/registry/configmaps/default/a"
)

// A severedServer is a server whose store can be cut off, with one ConfigMap.
type severedServer struct {
	*testing.T
	ctx   context.Context
	store *severed
	s     *Server
}

func (s *severedServer) request(method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body)).WithContext(s.ctx)
	r.Header.Set("Authorization", "Bearer root")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.s.Handler().ServeHTTP(w, r)
	return w
}

func (s *severedServer) get(path string) *httptest.ResponseRecorder {
	return s.request(http.MethodGet, path, "")
}

// listVersion lists the ConfigMap, and returns the resourceVersion of the list.
func (s *severedServer) listVersion() string {
	s.Helper()
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []struct{}
	}
	w := s.get(configMapsPath)
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) != 1 {
		s.Fatalf("%d %s", w.Code, w.Body)
	}
	return list.Metadata.ResourceVersion
}

// rewrite puts the ConfigMap's value again in the store, without the server.
func (s *severedServer) rewrite() {
	s.Helper()
	kv, _, err := s.store.Get(s.ctx, configMapKey)
	if err != nil || kv == nil {
		s.Fatal(kv, err)
	}
	rev, _, _, err := s.store.Put(s.ctx, configMapKey, kv.Value, kv.Revision, 0)
	if err == nil {
		err = s.store.Compact(s.ctx, rev)
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *severedServer) deleteConfigMap() {
	kv, _, err := s.store.Get(s.ctx, configMapKey)
	if err == nil {
		_, _, _, err = s.store.Delete(s.ctx, configMapKey, kv.Revision)
	}
	if err != nil {
		s.Error(err)
	}
}

// checkExpired fails unless the watch ended with the error 410 Expired.
func (s *severedServer) checkExpired(name string, w *httptest.ResponseRecorder) {
	s.Helper()
	var event struct {
		Type   string
		Object struct {
			Message, Reason string
			Code            int
		}
	}
	err := json.Unmarshal(w.Body.Bytes(), &event)
	o := event.Object
	if w.Code != http.StatusOK || err != nil || event.Type != "ERROR" || o.Code != http.StatusGone || o.Reason != "Expired" || !tooOld.MatchString(o.Message) {
		s.Errorf("%s: %d %s", name, w.Code, w.Body)
	}
}

// While a server is cut off from its store, others write, and the history that it
// missed is compacted. Watchers are told so in upstream's words, and a list shows
// the present state.
func TestHistoryForgottenUnderAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		store := &severed{Memory: storage.NewMemory()}
		server, stop := newServer(t, func(c *Config) { c.Store, c.MaxReads, c.MaxWrites = store, 100, 100 })
		defer stop()
		s := &severedServer{t, ctx, store, server}
		if w := s.request(http.MethodPost, configMapsPath, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		old := s.listVersion()
		watches := map[string]string{
			"all":        configMapsPath + "?watch=1&resourceVersion=" + old,
			"one":        configMapsPath + "?watch=1&fieldSelector=metadata.name%3Da&resourceVersion=" + old,
			"everywhere": "/api/v1/configmaps?watch=1&allowWatchBookmarks=1&resourceVersion=" + old,
		}
		answers := map[string]chan *httptest.ResponseRecorder{}
		for name, path := range watches {
			answer := make(chan *httptest.ResponseRecorder, 1)
			answers[name] = answer
			go func() { answer <- s.get(path) }()
		}
		synctest.Wait()
		store.sever(true)
		synctest.Wait()
		for range 3 {
			s.rewrite()
		}
		time.AfterFunc(time.Second, func() { store.sever(false) })
		now := s.listVersion() // waits for the store's own word
		if now == old {
			t.Errorf("a list is still of %s", old)
		}
		for name, answer := range answers {
			select {
			case w := <-answer:
				s.checkExpired(name, w)
			case <-ctx.Done():
				t.Fatalf("the watch of %s hangs", name)
			}
		}
		for name, path := range watches {
			s.checkExpired(name+", anew", s.get(path))
		}
		if w := s.get(configMapsPath + "?resourceVersion=" + old + "&resourceVersionMatch=Exact"); w.Code != http.StatusGone {
			t.Errorf("a list of what is forgotten: %d %s", w.Code, w.Body)
		}
		go s.deleteConfigMap()
		if w := s.get(configMapsPath + "?watch=1&timeoutSeconds=1&resourceVersion=" + now); !strings.Contains(w.Body.String(), `"type":"DELETED"`) {
			t.Errorf("a watch from the list on: %d %s", w.Code, w.Body)
		}
	})
}
