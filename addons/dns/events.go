package dns

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/miekg/dns"
)

func equal(a, b []string) bool { return slices.Equal(a, b) }

// mapOf is the ConfigMap that a text of the configuration is of.
func mapOf(main, custom *corev1.ConfigMap, file string) *corev1.ConfigMap {
	if custom != nil && (main == nil || strings.HasPrefix(file, customDir)) {
		return custom
	}
	return main
}

const eventTime = 10 * time.Second

// event says something of a ConfigMap. The servers of all nodes say the same of one
// version of it, so the name makes it one Event.
func (s *Server) event(ctx context.Context, about *corev1.ConfigMap, reason, message string) {
	if about == nil {
		return
	}
	if len(message) > 1000 { // the API's bound is 1024
		message = message[:1000]
	}
	sum := sha256.Sum256([]byte(string(about.UID) + about.ResourceVersion + reason + message))
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: fmt.Sprintf("%s.%x", about.Name, sum[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "ConfigMap", Namespace: about.Namespace, Name: about.Name, UID: about.UID, ResourceVersion: about.ResourceVersion,
		},
		Reason: reason, Message: message, Type: corev1.EventTypeWarning, Count: 1,
		Source: corev1.EventSource{Component: "coredns"}, FirstTimestamp: now, LastTimestamp: now,
	}
	s.conf.wg.Go("DNS: write an event", func() {
		ctx, cancel := context.WithTimeout(ctx, eventTime)
		defer cancel()
		if _, err := s.client.CoreV1().Events(about.Namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			slog.WarnContext(ctx, "write an event of the DNS configuration", "err", err)
		}
	})
}

// reportLoop says that a server leads back here.
func (s *Server) reportLoop(server, zone string) {
	s.conf.mu.Lock()
	ctx, main, custom := s.conf.ctx, s.conf.maps[configMapName], s.conf.maps[customMapName]
	s.conf.mu.Unlock()
	s.event(ctx, mapOf(main, custom, ""), "ForwardingLoop", fmt.Sprintf("forward %s: the server %s leads back to the cluster's DNS and is not asked", zone, server))
}

// failures are the log of questions that no server has answered: one line in a while.
type failures struct {
	mu   sync.Mutex
	last time.Time
	more int
}

const failuresEvery = 10 * time.Second

func (f *failures) log(err error, name string, qtype uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.last) < failuresEvery {
		f.more++
		return
	}
	slog.Warn("DNS: no answer from elsewhere", "name", name, "type", dns.Type(qtype).String(), "err", err, "more", f.more)
	f.last, f.more = time.Now(), 0
}
