package kubeproxy

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// inNewNamespace runs f on a thread with a network namespace of its own, which
// ends with it.
func inNewNamespace(b *testing.B, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		inNamespace(b)
		f()
	}()
	<-done
}

// manyServices are n Services of two endpoints each, with what a proxy plans.
func manyServices(n int) map[cache.ObjectName]Rules {
	changes := make(map[cache.ObjectName]Rules, n)
	for i := range n {
		name := fmt.Sprint("s", i)
		changes[cache.NewObjectName("ns", name)] = plan(numbered(i), eps(slice(name, 8080, "10.1.0.1", "10.1.0.2")), host{name: "n1"})
	}
	return changes
}

func numbered(i int) *corev1.Service {
	return service(fmt.Sprint("s", i), fmt.Sprintf("10.43.%d.%d", i/250, i%250+1), corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP})
}

// quantiles reports how long single tries took.
func quantiles(b *testing.B, tries []time.Duration) {
	slices.Sort(tries)
	for _, q := range []struct {
		name string
		of   int
	}{{"p50-µs", 50}, {"p99-µs", 99}} {
		b.ReportMetric(float64(tries[min(len(tries)*q.of/100, len(tries)-1)].Microseconds()), q.name)
	}
}

// BenchmarkEndpointChange is one endpoint that comes or goes among n Services.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{1000, 10000, 30000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			inNewNamespace(b, func() {
				k, err := newNFTables("knarr-bench", nil)
				if err != nil {
					b.Error(err)
					return
				}
				write(b, k, manyServices(n), true)
				states := []Rules{
					plan(numbered(7), eps(slice("s7", 8080, "10.1.0.1")), host{name: "n1"}),
					plan(numbered(7), eps(slice("s7", 8080, "10.1.0.1", "10.1.0.2")), host{name: "n1"}),
				}
				var tries []time.Duration
				b.ResetTimer()
				for i := range b.N {
					began := time.Now()
					write(b, k, one("s7", states[i%2]), false)
					tries = append(tries, time.Since(began))
				}
				b.StopTimer()
				quantiles(b, tries)
			})
		})
	}
}

// BenchmarkColdStart writes all rules of n Services into an empty kernel.
func BenchmarkColdStart(b *testing.B) {
	for _, n := range []int{10000, 44000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			inNewNamespace(b, func() {
				for range b.N {
					b.StopTimer()
					changes := manyServices(n)
					k, err := newNFTables("knarr-bench", nil)
					if err != nil {
						b.Error(err)
						return
					}
					b.StartTimer()
					write(b, k, changes, true)
				}
			})
		})
	}
}

// BenchmarkFirstPacket connects to one of n Services: the first packet of a
// connection is the one that asks the rules.
func BenchmarkFirstPacket(b *testing.B) {
	for _, n := range []int{1000, 30000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			inNewNamespace(b, func() {
				serve(b, "10.1.0.1:8080")
				serve(b, "10.1.0.2:8080")
				k, err := newNFTables("knarr-bench", nil)
				if err != nil {
					b.Error(err)
					return
				}
				write(b, k, manyServices(n), true)
				var tries []time.Duration
				b.ResetTimer()
				for range b.N {
					began := time.Now()
					c, err := net.DialTimeout("tcp", "10.43.0.8:80", time.Second)
					if err != nil {
						b.Error(err)
						return
					}
					tries = append(tries, time.Since(began))
					c.Close()
				}
				b.StopTimer()
				quantiles(b, tries)
			})
		})
	}
}
