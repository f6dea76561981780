package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/runtimestate"
)

// TestFailedRotationIsLogged: which container's log cannot be rotated is in the log, once.
func TestFailedRotationIsLogged(t *testing.T) {
	log := takeLog(t)
	n := newNode(t) // whose runtime opens no log anew
	n.start()
	n.api.addPod(podtest.Pod("p", "c"))
	n.until("ready", n.ready("p"))
	path := n.k.all()[0].shown.Load().observed.Running()[0].LogPath
	if err := os.WriteFile(path, []byte("a line"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		n.k.rotateLarge(t.Context(), 1)
	}
	want := []string{"level=WARN", "Failed to rotate log for container", "pod=" + podspec.Format(n.api.pod("p")), "container=c", "path=" + path}
	if log.count(want...) != 1 {
		t.Errorf("want %q once in\n%s", want, log.all.String())
	}
}

// A slowRuntime opens logs anew once it may.
type slowRuntime struct {
	cri.RuntimeServiceClient
	asked atomic.Int32
	may   chan struct{}
}

func (r *slowRuntime) ReopenContainerLog(context.Context, *cri.ReopenContainerLogRequest, ...grpc.CallOption) (*cri.ReopenContainerLogResponse, error) {
	r.asked.Add(1)
	<-r.may
	return &cri.ReopenContainerLogResponse{}, nil
}

// TestRotationsAtOnce: containerLogMaxWorkers logs are rotated at once.
func TestRotationsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settings := &configuration.Settings{ContainerLogMaxWorkers: new(int32(2)), ContainerLogMaxFiles: new(int32(5))}
		r := &slowRuntime{may: make(chan struct{})}
		k := &Kubelet{cfg: Config{Settings: settings}, runtime: r, workers: map[types.UID]*worker{}}
		observed := &runtimestate.Pod{}
		for _, name := range []string{"a", "b", "c"} { // whose logs an earlier rotation moved aside
			observed.Containers = append(observed.Containers, &runtimestate.Container{ContainerStatus: &cri.ContainerStatus{
				Id: name, State: cri.ContainerState_CONTAINER_RUNNING, LogPath: filepath.Join(t.TempDir(), name)}})
		}
		w := &worker{k: k, uid: "u"}
		w.shown.Store(&shown{pod: podtest.Pod("p", "a", "b", "c"), observed: observed})
		k.workers["u"] = w
		go k.rotateLarge(t.Context(), 1)
		synctest.Wait()
		if n := r.asked.Load(); n != 2 {
			t.Errorf("%d at once, want 2", n)
		}
		close(r.may)
		synctest.Wait()
		if n := r.asked.Load(); n != 3 {
			t.Errorf("%d of 3 were rotated", n)
		}
	})
}
