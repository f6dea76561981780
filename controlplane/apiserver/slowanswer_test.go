package apiserver_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"knarr/controlplane/apiserver"
	"knarr/internal/memnet"
)

// TestAnswersNobodyReads: clients that never read what they asked for hold no
// seat while others wait, and not their connection for ever. Watches and logs
// are as long as their clients want.
func TestAnswersNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, done := newBubble(t, func(c *apiserver.Config) { c.MaxReads, c.MaxWrites = 40, 20 })
		defer done()
		w.allow("bob", "", rbacv1.Subject{Kind: rbacv1.UserKind, Name: "bob"}, rule("get,watch,update", "", "configmaps"),
			rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/openapi/v2"}})
		_, err := w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string]string{"a": strings.Repeat("x", 900_000)}}, metav1.CreateOptions{})
		w.must(err)
		_, err = w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "small"}}, metav1.CreateOptions{})
		w.must(err)
		w.must(w.Cache().Sync(w.ctx))

		ask := func(method, path, body string) net.Conn {
			conn, err := w.Config(&user.DefaultInfo{Name: "bob"}).Dial(w.ctx, "", "")
			w.must(err)
			_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/merge-patch+json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
			w.must(err)
			return conn
		}
		watching := ask("GET", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=7200&fieldSelector=metadata.name%3Dbig", "")
		time.Sleep(time.Second)
		var unreading []net.Conn
		for range 200 {
			unreading = append(unreading, ask("GET", "/api/v1/namespaces/default/configmaps/big", ""), ask("GET", "/openapi/v2", ""))
		}
		time.Sleep(time.Second)
		began := time.Now()
		if _, err := w.as("bob").CoreV1().ConfigMaps("default").Get(w.ctx, "small", metav1.GetOptions{}); err != nil {
			t.Errorf("beside clients that read nothing: %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("a client waited %s for those that read nothing", took)
		}

		time.Sleep(2 * time.Minute)
		whole := 0
		for _, c := range unreading {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			if err == nil && resp.StatusCode == http.StatusOK {
				whole++
			}
			c.Close()
		}
		if whole > 0 {
			t.Errorf("%d of %d answers waited for as long as their clients wanted", whole, len(unreading))
		}
		resp, err := http.ReadResponse(bufio.NewReader(watching), nil)
		w.must(err)
		if _, err := io.CopyN(io.Discard, resp.Body, 900_000); err != nil {
			t.Errorf("a watch that was not read for a while: %v", err)
		}
		watching.Close()
	})
}

// TestStreamsNobodyReads: the same over HTTP/2, whose client leaves the windows of
// its streams shut while it reads everything else.
func TestStreamsNobodyReads(t *testing.T) {
	cert, _ := serving(t, "apiserver")
	synctest.Test(t, func(t *testing.T) {
		w, done := newBubble(t)
		defer done()
		w.allow("reads", "", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}, rule("get", "", "configmaps"))
		_, err := w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "middling"}, Data: map[string]string{"a": strings.Repeat("x", 6<<10)}}, metav1.CreateOptions{})
		w.must(err)
		w.must(w.Cache().Sync(w.ctx))
		token := w.token("default", 3600)

		l := memnet.Listen()
		ctx, cancel := context.WithCancel(w.ctx)
		var serving sync.WaitGroup
		serving.Go(func() {
			_ = w.Serve(ctx, l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}})
		})
		defer serving.Wait()
		defer l.Close()
		defer cancel()
		raw, err := l.Dial(w.ctx, "", "")
		w.must(err)
		conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		defer conn.Close()
		_, err = io.WriteString(conn, http2.ClientPreface)
		w.must(err)
		f := http2.NewFramer(conn, conn)
		w.must(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		const streams = 50
		var head bytes.Buffer
		enc := hpack.NewEncoder(&head)
		for i := range streams {
			head.Reset()
			for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "a"}, {":path", "/api/v1/namespaces/default/configmaps/middling"}, {"authorization", "Bearer " + token}} {
				w.must(enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
			}
			w.must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}))
		}
		began := time.Now()
		w.must(conn.SetReadDeadline(began.Add(5 * time.Minute)))
		for ended := 0; ended < streams; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Errorf("%d of %d streams ended within %s: %v", ended, streams, time.Since(began), err)
				return
			}
			if frame.Header().Type == http2.FrameRSTStream {
				ended++
			}
		}
	})
}
