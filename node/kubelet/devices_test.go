package kubelet

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"knarr/node/kubelet/csi"
	"knarr/node/kubelet/deviceplugin/plugintest"
	"knarr/node/kubelet/podtest"
)

const gpu = "example.com/gpu"

func (n *node) pluginDir() string { return filepath.Join(n.dir, "kubelet", "device-plugins") }

// offers says whether the Node shows so many devices, all and healthy ones.
func (n *node) offers(all, healthy int64) func() bool {
	return func() bool {
		s := corev1.Node{}
		if have := n.k.node.Load(); have != nil {
			s = *have
		}
		a, known := s.Status.Capacity[gpu]
		h := s.Status.Allocatable[gpu]
		return known && a.Value() == all && h.Value() == healthy
	}
}

func gpuPod(name string, count string) *corev1.Pod {
	p := podtest.Pod(name, name)
	list := corev1.ResourceList{gpu: resource.MustParse(count)}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

// TestDevices goes through the life of a plugin's devices.
func TestDevices(t *testing.T) {
	n := newNode(t)
	stop := n.start()
	plugin := &plugintest.Plugin{Options: pluginapi.DevicePluginOptions{PreStartRequired: true}}
	plugintest.Start(t, plugin, n.pluginDir(), gpu, plugintest.Devices("a", "b", "c")...)
	n.until("the devices on the Node", n.offers(3, 3))

	n.api.addPod(gpuPod("one", "2"))
	n.until("the pod", n.ready("one"))
	if calls := plugin.Calls(); !slices.Equal(calls, []string{"Allocate a,b", "PreStart a,b"}) {
		t.Errorf("calls %v", calls)
	}
	n.api.addPod(gpuPod("two", "2"))
	n.until("one too many refused", func() bool { return n.api.pod("two").Status.Reason == "UnexpectedAdmissionError" })
	if m := n.api.pod("two").Status.Message; m != "Pod was rejected: Allocate failed due to requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1, which is unexpected" {
		t.Errorf("message %q", m)
	}

	plugin.Set(append(plugintest.Devices("b", "c"), &pluginapi.Device{ID: "a", Health: pluginapi.Unhealthy})...)
	n.until("a sick device", n.offers(3, 2))
	n.until("its pod tells", func() bool {
		s := n.api.pod("one").Status.ContainerStatuses[0].AllocatedResourcesStatus
		return len(s) == 1 && s[0].Name == gpu && len(s[0].Resources) == 2 && s[0].Resources[0].Health == corev1.ResourceHealthStatusUnhealthy &&
			s[0].Resources[1].Health == corev1.ResourceHealthStatusHealthy
	})

	conn, err := grpc.NewClient("unix://"+filepath.Join(n.dir, "kubelet", "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	agent := podresources.NewPodResourcesListerClient(conn)
	list, err := agent.List(context.Background(), &podresources.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.PodResources) != 1 || list.PodResources[0].Name != "one" || len(list.PodResources[0].Containers[0].Devices) != 2 {
		t.Errorf("list %v, %v", list, err)
	}
	one, err := agent.Get(context.Background(), &podresources.GetPodResourcesRequest{PodName: "one", PodNamespace: "ns"})
	if err != nil || one.PodResources.Containers[0].Devices[0].ResourceName != gpu {
		t.Errorf("get %v, %v", one, err)
	}
	old, err := podresourcesv1alpha1.NewPodResourcesListerClient(conn).List(context.Background(), &podresourcesv1alpha1.ListPodResourcesRequest{})
	got := map[string]int{} // devices of pods
	for _, p := range old.GetPodResources() {
		got[p.Name] = 0
		for _, d := range p.Containers[0].Devices {
			if d.ResourceName == gpu {
				got[p.Name]++
			}
		}
	}
	if want := map[string]int{"one": 2, "two": 0}; err != nil || !maps.Equal(got, want) {
		t.Errorf("list in the first version %v, %v, want %v", old, err, want)
	}
	if _, err := agent.Get(context.Background(), &podresources.GetPodResourcesRequest{PodName: "none", PodNamespace: "ns"}); err == nil {
		t.Error("a pod that there is not is told of")
	}
	if all, err := agent.GetAllocatableResources(context.Background(), &podresources.AllocatableResourcesRequest{}); err != nil || len(all.Devices) != 2 {
		t.Errorf("allocatable %v, %v", all, err)
	}

	// A restart of the kubelet: the plugin has not come back, the pod keeps what it has.
	stop()
	n.start()
	n.until("no healthy device", n.offers(0, 0))
	if s := n.api.pod("one").Status; s.Phase != corev1.PodRunning {
		t.Errorf("the pod is %s: %s", s.Phase, s.Message)
	}
	again := &plugintest.Plugin{}
	plugintest.Start(t, again, n.pluginDir(), gpu, plugintest.Devices("a", "b", "c")...)
	n.until("the devices again", n.offers(3, 3))
	n.api.addPod(gpuPod("three", "1"))
	n.until("a pod with what is left", n.ready("three"))
	if calls := again.Calls(); !slices.Equal(calls, []string{"Allocate c"}) {
		t.Errorf("calls %v", calls)
	}
}

// TestPluginThatFails: its pods are rejected in upstream's words, the others run.
func TestPluginThatFails(t *testing.T) {
	n := newNode(t)
	n.start()
	plugin := &plugintest.Plugin{Fail: func() error { return errors.New("broken") }}
	plugintest.Start(t, plugin, n.pluginDir(), gpu, plugintest.Devices("a")...)
	n.until("the devices on the Node", n.offers(1, 1))
	n.api.addPod(gpuPod("one", "1"))
	n.until("the pod rejected", func() bool { return n.api.pod("one").Status.Reason == "UnexpectedAdmissionError" })
	if m := n.api.pod("one").Status.Message; m != "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = broken, which is unexpected" {
		t.Errorf("message %q", m)
	}
	n.api.addPod(podtest.Pod("plain", "c"))
	n.until("another pod", n.ready("plain"))
}

// TestUnknownExtendedResource: what nobody offers on this node is somebody else's.
func TestUnknownExtendedResource(t *testing.T) {
	n := newNode(t)
	n.start()
	n.api.addPod(gpuPod("one", "1"))
	n.until("the pod", n.ready("one"))
}

// TestAdoptedPlugin: a plugin that registers in the directory of all plugins is taken, and
// gone when its registration is; what it must not be it is told.
func TestAdoptedPlugin(t *testing.T) {
	n := newNode(t)
	n.start()
	registry := filepath.Join(n.dir, "kubelet", "plugins_registry")
	refused := func() {
		t.Helper()
		wrong := plugintest.Announce(t, &plugintest.Plugin{}, registry, "not-extended")
		if s := <-wrong.Statuses; s.PluginRegistered || s.Error != `invalid name of device plugin socket: the ResourceName "not-extended" is invalid` {
			t.Errorf("told %v", s)
		}
		wrong.Stop()
	}
	refused()
	p := plugintest.Announce(t, &plugintest.Plugin{}, registry, gpu, &pluginapi.Device{ID: "a", Health: pluginapi.Healthy})
	if s := <-p.Statuses; !s.PluginRegistered {
		t.Errorf("told %v", s)
	}
	n.until("the device on the Node", n.offers(1, 1))

	// Another takes its place, and stays when its socket goes.
	other := &plugintest.Plugin{}
	next := plugintest.Announce(t, other, registry, gpu, plugintest.Devices("a", "b")...)
	n.until("the other's devices", n.offers(2, 2))
	p.Stop()
	refused() // the directory was looked at since
	other.Set(plugintest.Devices("a", "b", "c")...)
	n.until("what the other has now", n.offers(3, 3))
	next.Stop()
	n.until("no healthy one", n.offers(3, 0))
}

// TestDriversAreWatchedForAgain: what keeps the directory of sockets from being watched may
// pass, and is in the log until then.
func TestDriversAreWatchedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		registry := filepath.Join(root, "plugins_registry")
		if err := os.WriteFile(registry, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		k := &Kubelet{drivers: csi.New(csi.Config{RootDir: root, NodeName: "n"})}
		ctx, cancel := context.WithCancel(t.Context())
		text := logged(t, func() {
			ended := make(chan struct{})
			go func() { k.followDrivers(ctx); close(ended) }()
			time.Sleep(socketRetry / 2)
			if err := os.Remove(registry); err != nil {
				t.Error(err)
			}
			time.Sleep(socketRetry / 2) // no longer: a watch keeps the time of a bubble from passing
			isDir := false
			for range 1_000_000 {
				if st, err := os.Stat(registry); err == nil && st.IsDir() {
					isDir = true
					break
				}
				runtime.Gosched()
			}
			if !isDir {
				t.Error("the directory is not watched after all")
			}
			cancel()
			<-ended
		})
		if strings.Count(text, "storage drivers are not available, trying again") != 1 {
			t.Errorf("log %s", text)
		}
	})
}
