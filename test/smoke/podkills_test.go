package smoke

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// kills is how often the server is killed under pods, and how often the shim.
const kills = 20

// TestPodKills kills the server again and again under pods, and the shim, and both: no
// container may notice, and no request to one may fail. Nor may they when the shim hangs.
// Then it kills them while pods start and while they end, which may take longer for that,
// but may leave nothing.
func TestPodKills(t *testing.T) {
	soakPods(t)
	c := newSoakCluster(t)
	group := c.podBatch("warm", podsAtOnce)
	before := c.settled(group)
	t.Logf("after the first %d pods: %v", podsAtOnce, before)

	served := c.serve()
	c.createPods("kept", podsAtOnce-1)
	kept := containers(c.readyPods(podsAtOnce))
	calls := c.call(served)
	for _, round := range []struct {
		what string
		kill func()
	}{
		{"the server", c.killServer},
		{"the shim", c.killShim},
		{"both", func() { c.stop(syscall.SIGKILL); c.endShim(syscall.SIGKILL); c.start() }},
	} {
		began, asked := time.Now(), calls.asked()
		for i := range kills {
			round.kill()
			c.execs(fmt.Sprintf("kept-%d", i))
		}
		now := containers(c.readyPods(podsAtOnce))
		for name, was := range kept {
			if now[name] != was {
				t.Errorf("pod %s: container %s before %s was killed, %s after", name, was, round.what, now[name])
			}
		}
		t.Logf("%s killed %d times under %d pods in %v, %d requests meanwhile", round.what, kills, len(now), time.Since(began).Round(time.Second), calls.asked()-asked)
	}
	began := time.Now()
	c.stopShim()
	if now := containers(c.readyPods(podsAtOnce)); !maps.Equal(now, kept) {
		t.Error("containers before the shim was stopped, and after:", kept, now)
	}
	t.Logf("a shim that hangs was replaced in %v", time.Since(began).Round(time.Second))
	for _, err := range calls.end() {
		t.Error(err)
	}

	c.kubectl("-n", "smoke", "delete", "service", "served")
	c.deletePods()
	c.noPods()
	for _, round := range []struct {
		what  string
		kill  func()
		every time.Duration
	}{
		{"shim", c.killShim, time.Second},
		{"server", c.killServer, 2 * time.Second},
	} {
		c.createPods("churn-"+round.what, podsAtOnce)
		c.repeat(round.kill, round.every)
		c.readyPods(podsAtOnce)
		c.deletePods()
		c.repeat(round.kill, round.every)
		c.noPods()
		t.Logf("pods made and removed while the %s was killed: %v", round.what, c.asBefore(group, before))
	}
}

// churnKills is how often one of them is killed while all pods start, and again while
// all of them end.
const churnKills = 6

// repeat kills now and then.
func (c *cluster) repeat(kill func(), every time.Duration) {
	for range churnKills {
		select {
		case <-time.After(every):
			kill()
		case <-c.t.Context().Done():
		}
	}
}

// killServer ends it by a signal that it cannot catch, and starts it again.
func (c *cluster) killServer() {
	c.t.Helper()
	c.stop(syscall.SIGKILL)
	c.start()
	c.wait("/readyz after kill -9", time.Minute, func(ctx context.Context) (bool, error) { return c.readyz(ctx), nil })
}

// endShim ends the process that runs all containers, or has it hang.
func (c *cluster) endShim(by syscall.Signal) (pid int) {
	c.t.Helper()
	c.wait("a shim", time.Minute, func(context.Context) (bool, error) {
		if all := c.shims(); len(all) == 1 {
			pid = all[0]
		}
		return pid != 0, nil
	})
	if err := syscall.Kill(pid, by); err != nil && !errors.Is(err, syscall.ESRCH) {
		c.t.Error(err)
	}
	return pid
}

// killShim waits for the one that takes its place.
func (c *cluster) killShim() {
	c.t.Helper()
	c.otherShim(c.endShim(syscall.SIGKILL))
}

// stopShim has it answer nobody, until that is noticed.
func (c *cluster) stopShim() {
	c.t.Helper()
	c.otherShim(c.endShim(syscall.SIGSTOP))
}

func (c *cluster) otherShim(old int) {
	c.t.Helper()
	c.wait("another shim", 2*time.Minute, func(context.Context) (bool, error) {
		now := c.shims()
		return len(now) == 1 && now[0] != old, nil
	})
}

// shims are the processes that run containers, of which there is one.
func (c *cluster) shims() []int {
	return processes(filepath.Join(c.dir, "bin", "knarr-shim") + "\x00-address")
}

// execs waits until a command runs in a pod's container: the node knows it again.
func (c *cluster) execs(pod string) {
	c.t.Helper()
	c.wait("a command in pod "+pod, time.Minute, func(context.Context) (bool, error) {
		out, err := c.try("-n", "smoke", "exec", pod, "--", "/bin/echo", "there")
		return err == nil && strings.TrimSpace(out) == "there", err
	})
}

// serve makes a pod that answers, and a Service that leads to it, and gives both
// addresses.
func (c *cluster) serve() []string {
	c.t.Helper()
	label := map[string]string{"app": "served"}
	_, err := c.client.CoreV1().Services("smoke").Create(c.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "served"}, Spec: corev1.ServiceSpec{
		Selector: label, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = c.client.CoreV1().Pods("smoke").Create(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "served", Labels: label}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: image, Command: []string{"/app"}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	pod := c.readyPods(1)[0]
	service, err := c.client.CoreV1().Services("smoke").Get(c.t.Context(), "served", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	addresses := []string{net.JoinHostPort(pod.Status.PodIP, "8080"), net.JoinHostPort(service.Spec.ClusterIP, "80")}
	for _, address := range addresses {
		c.wait("an answer of "+address, time.Minute, func(ctx context.Context) (bool, error) {
			return askOnce(ctx, address) == nil, nil
		})
	}
	return addresses
}

// calls are requests without a pause, over connections that are held and over new ones.
type calls struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	n      int
	errs   []error
}

// betweenCalls leaves the processors to what is tested.
const betweenCalls = 5 * time.Millisecond

func (c *cluster) call(addresses []string) *calls {
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	all := &calls{cancel: cancel}
	for _, address := range addresses {
		all.wg.Go(func() { all.note(ctx, "over the connection held to "+address, all.hold(ctx, address)) })
		all.wg.Go(func() {
			for ctx.Err() == nil {
				all.note(ctx, "over a new connection to "+address, askOnce(ctx, address))
				pause(ctx)
			}
		})
	}
	return all
}

func pause(ctx context.Context) {
	select {
	case <-time.After(betweenCalls):
	case <-ctx.Done():
	}
}

// note counts a request, unless it failed because nothing more is wanted.
func (a *calls) note(ctx context.Context, how string, err error) {
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("request %d, %s, at %s: %w", a.n, how, time.Now().Format(time.TimeOnly), err))
	}
}

func (a *calls) asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

// end gives the first of the errors.
func (a *calls) end() []error {
	a.cancel()
	a.wg.Wait()
	return a.errs[:min(len(a.errs), 10)]
}

// hold asks over one connection for as long as that is answered.
func (a *calls) hold(ctx context.Context, address string) error {
	conn, err := net.DialTimeout("tcp", address, callLimit)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answers := bufio.NewReader(conn)
	for {
		if err := ask(conn, answers); err != nil {
			return err
		}
		a.note(ctx, "", nil)
		pause(ctx)
	}
}

// callLimit is how long an answer may take on a machine that is busy.
const callLimit = 10 * time.Second

func askOnce(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: callLimit}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(conn, bufio.NewReader(conn))
}

// ask sends one request over a connection and reads its answer.
func ask(conn net.Conn, answers *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: served\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return err
}
