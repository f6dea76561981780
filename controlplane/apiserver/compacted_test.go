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

// While a server is cut off from its store, others write, and the history that it
// missed is forgotten. Those who watch are told so in upstream's words, and a
// list shows them how things are.
func TestHistoryForgottenUnderAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		store := &severed{Memory: storage.NewMemory()}
		s, stop := newServer(t, func(c *Config) { c.Store, c.MaxReads, c.MaxWrites = store, 100, 100 })
		defer stop()
		const maps, key = "/api/v1/namespaces/default/configmaps", "/registry/configmaps/default/a"
		request := func(method, path, body string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, path, strings.NewReader(body)).WithContext(ctx)
			r.Header.Set("Authorization", "Bearer root")
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			return w
		}
		if w := request(http.MethodPost, maps, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		version := func(w *httptest.ResponseRecorder) string {
			var list struct {
				Metadata struct{ ResourceVersion string }
				Items    []struct {
					Metadata struct{ ResourceVersion string }
				}
			}
			if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) != 1 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			return list.Metadata.ResourceVersion
		}
		old := version(request(http.MethodGet, maps, ""))
		watches := map[string]string{
			"all":        maps + "?watch=1&resourceVersion=" + old,
			"one":        maps + "?watch=1&fieldSelector=metadata.name%3Da&resourceVersion=" + old,
			"everywhere": "/api/v1/configmaps?watch=1&allowWatchBookmarks=1&resourceVersion=" + old,
		}
		answers := map[string]chan *httptest.ResponseRecorder{}
		for name, path := range watches {
			answer := make(chan *httptest.ResponseRecorder, 1)
			answers[name] = answer
			go func() { answer <- request(http.MethodGet, path, "") }()
		}
		synctest.Wait()

		store.sever(true)
		synctest.Wait()
		for range 3 {
			kv, _, err := store.Get(ctx, key)
			if err != nil || kv == nil {
				t.Fatal(kv, err)
			}
			rev, _, _, err := store.Put(ctx, key, kv.Value, kv.Revision, 0)
			if err == nil {
				err = store.Compact(ctx, rev)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(time.Second, func() { store.sever(false) })
		now := version(request(http.MethodGet, maps, "")) // waits for the store's own word
		if now == old {
			t.Errorf("a list is still of %s", old)
		}
		expired := func(name string, w *httptest.ResponseRecorder) {
			t.Helper()
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
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		for name, answer := range answers {
			select {
			case w := <-answer:
				expired(name, w)
			case <-ctx.Done():
				t.Fatalf("the watch of %s hangs", name)
			}
		}
		for name, path := range watches {
			expired(name+", anew", request(http.MethodGet, path, ""))
		}
		if w := request(http.MethodGet, maps+"?resourceVersion="+old+"&resourceVersionMatch=Exact", ""); w.Code != http.StatusGone {
			t.Errorf("a list of what is forgotten: %d %s", w.Code, w.Body)
		}
		go func() {
			kv, _, err := store.Get(ctx, key)
			if err == nil {
				_, _, _, err = store.Delete(ctx, key, kv.Revision)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		if w := request(http.MethodGet, maps+"?watch=1&timeoutSeconds=1&resourceVersion="+now, ""); !strings.Contains(w.Body.String(), `"type":"DELETED"`) {
			t.Errorf("a watch from the list on: %d %s", w.Code, w.Body)
		}
	})
}
