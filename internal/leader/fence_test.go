package leader_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/apitest"
	"knarr/internal/leader"
)

// stuck keeps renewals of Leases back, as a process that stands still does: it looks at
// no context.
type stuck struct {
	http.RoundTripper
	until *atomic.Pointer[time.Time]
}

func (s stuck) RoundTrip(r *http.Request) (*http.Response, error) {
	if until := s.until.Load(); until != nil && strings.Contains(r.URL.Path, "/leases/") {
		time.Sleep(time.Until(*until))
	}
	return s.RoundTripper.RoundTrip(r)
}

// TestFenced: a term that goes on though its Lease has run out changes nothing more.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		cfg := leader.Fenced(s.Config())
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var until atomic.Pointer[time.Time]
		kube := s.Config()
		kube.Wrap(func(next http.RoundTripper) http.RoundTripper { return stuck{next, &until} })
		write := func(ctx context.Context) error {
			_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}, metav1.CreateOptions{})
			return err
		}
		terms := 0
		err = leader.Run(ctx, leader.Config{Kube: kube, Lease: "test"}, func(term context.Context) error {
			if terms++; terms == 2 { // what follows may write again
				if err := write(term); err != nil {
					t.Error(err)
				}
				cancel()
				return nil
			}
			time.Sleep(5 * time.Second)
			if err := write(term); err != nil {
				t.Error(err)
			}
			until.Store(new(time.Now().Add(30 * time.Second)))
			time.Sleep(20 * time.Second)
			if term.Err() != nil {
				t.Error("the term has ended: nothing is to be seen of the fence")
			}
			if err := write(term); err == nil || !strings.Contains(err.Error(), "the Lease test has run out, another may lead") {
				t.Errorf("written 20 s after the last renewal: %v", err)
			}
			if _, err := client.CoreV1().Namespaces().List(term, metav1.ListOptions{}); err != nil {
				t.Errorf("read: %v", err)
			}
			if err := write(ctx); err != nil {
				t.Errorf("of no term: %v", err)
			}
			<-term.Done()
			until.Store(nil)
			return nil
		})
		if err != nil || terms != 2 {
			t.Errorf("%d terms, %v", terms, err)
		}
	})
}
