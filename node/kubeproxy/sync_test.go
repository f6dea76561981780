package kubeproxy

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// A choosy dataplane refuses one Service for so many times.
type choosy struct {
	refuse cache.ObjectName
	times  int
	tries  []time.Duration
	began  time.Time
}

func (c *choosy) Intact() error            { return nil }
func (c *choosy) Changed() <-chan struct{} { return nil }
func (c *choosy) Close() error             { return nil }
func (c *choosy) Apply(changes map[cache.ObjectName]Rules, _ bool) (map[cache.ObjectName]error, error) {
	if _, ok := changes[c.refuse]; ok {
		if c.tries = append(c.tries, time.Since(c.began)); len(c.tries) <= c.times {
			return map[cache.ObjectName]error{c.refuse: errors.New("numerical result out of range")}, nil
		}
	}
	return nil, nil
}

// A Service that is refused is tried again ever more rarely, alone, and reported
// once.
func TestRefusedServiceIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &choosy{refuse: cache.NewObjectName("ns", "bad"), times: 4, began: time.Now()}
		y, events := fedSyncer(t, d)
		port := corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}
		y.put(t, 0, service("bad", "10.43.0.7", port), "10.1.0.1")
		y.put(t, 0, service("good", "10.43.0.8", port), "10.1.0.1")
		if err := y.sync(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(time.Minute)
			synctest.Wait()
			for range len(y.pending.c) {
				<-y.pending.c
				if err := y.sync(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(d.tries) != 5 || len(y.refused) != 0 {
			t.Errorf("tried at %v, still refused: %v", d.tries, y.refused)
		}
		if len(events.Events) != 1 {
			t.Errorf("%d events", len(events.Events))
		}
		if event := <-events.Events; event != "Warning FailedToWriteServiceRules This Service gets no rules on this node: numerical result out of range" {
			t.Error(event)
		}
	})
}

// A Service of more rules than a node can hold is refused before they are made.
func TestServiceOfTooManyRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, events := fedSyncer(t, &choosy{})
		var ports []corev1.ServicePort
		for i := range int32(200) {
			ports = append(ports, corev1.ServicePort{Name: strings.Repeat("p", int(i)+1), Port: i + 1, Protocol: corev1.ProtocolTCP})
		}
		y.put(t, 0, service("vast", "10.43.0.7", ports...), "10.1.0.1")
		big := slice("vast", 8080, make([]string, 1000)...)
		for len(big.Ports) < 200 {
			big.Ports = append(big.Ports, big.Ports[0])
		}
		if err := y.proxy.slices.GetStore().Update(big); err != nil {
			t.Fatal(err)
		}
		if err := y.sync(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if len(events.Events) != 1 || !strings.Contains(<-events.Events, "its ports times its addresses and endpoints are 200400, more than 100000") || len(y.claims.wanted) != 0 {
			t.Errorf("it gets rules for %d Services", len(y.claims.wanted))
		}
	})
}

// TestServiceOfTooManyPortsInSlices: ports that are gone through count, whether endpoints
// have them or not.
func TestServiceOfTooManyPortsInSlices(t *testing.T) {
	y, events := fedSyncer(t, &choosy{})
	svc, all := manyPorts(20_000, 5)
	y.put(t, 0, svc, "10.1.0.1")
	for _, s := range all {
		s.Endpoints = nil
		if err := y.proxy.slices.GetStore().Update(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.sync(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(events.Events) != 1 || len(y.claims.wanted) != 0 {
		t.Errorf("it gets rules for %d Services", len(y.claims.wanted))
	}
}
