package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"knarr/controlplane/apiserver/overload"
)

// A request that heeds no context is answered when its time is over, and what it
// writes later goes nowhere.
func TestAnsweredInTime(t *testing.T) {
	const late = `"message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout"`
	for _, c := range []struct {
		name  string
		serve func(w http.ResponseWriter, release <-chan struct{})
		code  int
		says  string
		fault any
		after time.Duration
	}{
		{"in time", func(w http.ResponseWriter, _ <-chan struct{}) {
			w.Header().Set("X", "y")
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("tea"))
		}, http.StatusTeapot, "tea", nil, 0},
		{"late", func(w http.ResponseWriter, release <-chan struct{}) {
			w.Header().Set("X", "y")
			<-release
			w.WriteHeader(http.StatusTeapot)
			if _, err := w.Write([]byte("tea")); !errors.Is(err, http.ErrHandlerTimeout) {
				t.Errorf("a late write: %v", err)
			}
			if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); !errors.Is(err, http.ErrHandlerTimeout) {
				t.Errorf("a late deadline: %v", err)
			}
		}, http.StatusGatewayTimeout, late, nil, 5 * time.Second},
		{"late, and begun", func(w http.ResponseWriter, release <-chan struct{}) {
			_, _ = w.Write([]byte("t"))
			<-release
		}, http.StatusOK, "t", http.ErrAbortHandler, 5 * time.Second},
		{"broken off", func(http.ResponseWriter, <-chan struct{}) { panic(http.ErrAbortHandler) }, http.StatusOK, "", http.ErrAbortHandler, 0},
		{"a panic when it is late", func(_ http.ResponseWriter, release <-chan struct{}) { <-release; panic("late") }, http.StatusGatewayTimeout, late, nil, 5 * time.Second},
		{"a panic", func(http.ResponseWriter, <-chan struct{}) { panic("oh") }, http.StatusInternalServerError, "panic serving the request", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				s, stop := newServer(t, func(cfg *Config) {
					cfg.Open = map[string]http.Handler{"/open": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(w, release) })}
				})
				defer stop()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				req := httptest.NewRequest(http.MethodPost, "/open?timeout=5s", strings.NewReader(strings.Repeat("x", overload.ExpensiveBodySize+1))).WithContext(ctx)
				req.Header.Set("Authorization", "Bearer root")
				w := httptest.NewRecorder()
				began := time.Now()
				func() {
					defer func() {
						if p := recover(); p != c.fault {
							t.Errorf("panic %v, want %v", p, c.fault)
						}
					}()
					s.Handler().ServeHTTP(w, req)
				}()
				if took := time.Since(began); took != c.after {
					t.Errorf("answered after %s, want %s", took, c.after)
				}
				code, header, body := w.Code, w.Header().Clone(), w.Body.String()
				if code != c.code || !strings.Contains(body, c.says) || code == http.StatusTeapot != (header.Get("X") == "y") {
					t.Errorf("%d %v %s", code, header, body)
				}
				close(release)
				synctest.Wait()
				if w.Body.String() != body {
					t.Errorf("afterwards %q came", w.Body.String()[len(body):])
				}
			})
		})
	}
}
