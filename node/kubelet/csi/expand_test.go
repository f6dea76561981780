package csi

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
	"knarr/internal/need"
	"knarr/node/kubelet/volume"
)

func (f *fakeDriver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	f.note(fmt.Sprintf("expand %s to %d", r.VolumeId, r.CapacityRange.RequiredBytes))
	f.mu.Lock()
	defer f.mu.Unlock()
	return &csipb.NodeExpandVolumeResponse{}, f.expandErr
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// grownClaim is a claim that asks for 2, of a volume that has 2, and has 1.
func grownClaim(at corev1.ClaimResourceStatus) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	c.Spec.Resources.Requests = storage("2")
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: storage("1")}
	if at != "" {
		c.Status.AllocatedResources = storage("2")
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: at}
	}
	return c
}

func grownVolume() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	v.Spec.Capacity = storage("2")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	return v
}

func TestExpansionOf(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *corev1.PersistentVolumeClaim)
		at     corev1.ClaimResourceStatus
		known  string
		want   string
	}{
		"the node is asked to":                 {nil, corev1.PersistentVolumeClaimNodeResizePending, "1", "2"},
		"the node has begun":                   {nil, corev1.PersistentVolumeClaimNodeResizeInProgress, "1", "2"},
		"the node could not":                   {nil, corev1.PersistentVolumeClaimNodeResizeInfeasible, "1", ""},
		"the controller is at work":            {nil, corev1.PersistentVolumeClaimControllerResizeInProgress, "1", ""},
		"an old resizer":                       {nil, "", "1", "2 old"},
		"to what was allocated, not asked for": {func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = storage("9") }, corev1.PersistentVolumeClaimNodeResizePending, "1", "2"},
		"another node was first":               {func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("2") }, "", "1", "2 done"},
		"this node knows":                      {func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("2") }, "", "2", ""},
		"this node has it from now on":         {func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = storage("2") }, "", "0", ""},
		"no node is needed": {func(c *corev1.PersistentVolumeClaim) {
			c.Status.Capacity = storage("2")
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, expansionNotRequired, "true")
		}, "", "1", ""},
		"one node has it": {func(c *corev1.PersistentVolumeClaim) {
			c.Status.Capacity, c.Spec.AccessModes = storage("2"), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		}, "", "1", ""},
	} {
		c := grownClaim(tt.at)
		if tt.change != nil {
			tt.change(c)
		}
		got := ""
		if e := expansionOf(c, grownVolume(), resource.MustParse(tt.known)); e != nil {
			got = e.size.String()
			for word, is := range map[string]bool{" old": e.old, " done": e.done} {
				if is {
					got += word
				}
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A volume grows while a pod has it; how that went is in the claim and in events.
func TestExpandsInUse(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		at     corev1.ClaimResourceStatus // before
		calls  int                        // in two attempts
		status string
		event  string
	}{
		"well": {nil, corev1.PersistentVolumeClaimNodeResizePending, 1, "2  []",
			`Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`},
		"by an old resizer": {nil, "", 1, "2  []",
			`Normal FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume "pv" n`},
		"not now": {status.Error(codes.Unavailable, "busy"), corev1.PersistentVolumeClaimNodeResizePending, 2, "1 NodeResizeInProgress []",
			`Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : rpc error: code = Unavailable desc = busy`},
		"not this time": {status.Error(codes.Internal, "broken"), corev1.PersistentVolumeClaimNodeResizePending, 2, "1 NodeResizeInProgress [NodeResizeError]",
			`Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : rpc error: code = Internal desc = broken`},
		"never": {status.Error(codes.OutOfRange, "too much"), corev1.PersistentVolumeClaimNodeResizePending, 1, "1 NodeResizeInfeasible [NodeResizeError]",
			`Warning VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : rpc error: code = OutOfRange desc = too much`},
		"not in use": {status.Error(codes.FailedPrecondition, "in use"), corev1.PersistentVolumeClaimNodeResizePending, 1, "1 NodeResizeInProgress [NodeResizeError]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := apitest.New(t)
			claims := s.Client(t).CoreV1().PersistentVolumeClaims("default")
			want := grownClaim(tt.at)
			claim, err := claims.Create(t.Context(), want, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			claim.Status = want.Status
			if claim, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			n := newNode(t)
			n.expandErr = tt.err
			var events []string
			m, _ := n.new()
			m.drivers["d"].expand, m.Client = true, s.Client(t)
			m.Event = func(about runtime.Object, kind, reason, message string) {
				if _, ok := about.(*corev1.Pod); ok {
					events = append(events, kind+" "+reason+" "+message)
				}
			}
			for range 2 {
				spec := volume.Spec{Name: "pv", PV: grownVolume(), Claim: claim}
				if err := m.Refresh(t.Context(), podWithClaim(1), spec, "/x", false); err != nil {
					t.Fatal(err)
				}
				if claim, err = claims.Get(t.Context(), "c", metav1.GetOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			var conditions []corev1.PersistentVolumeClaimConditionType
			for _, o := range claim.Status.Conditions {
				conditions = append(conditions, o.Type)
			}
			got := fmt.Sprint(claim.Status.Capacity.Storage(), " ", claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage], " ", conditions)
			if got != tt.status {
				t.Errorf("the claim says %s, want %s", got, tt.status)
			}
			if len(n.calls) != tt.calls || n.calls[0] != "expand h to 2" {
				t.Errorf("the driver was asked %v", n.calls)
			}
			if tt.event == "" && len(events) > 0 || tt.event != "" && !slices.Contains(events, tt.event) {
				t.Errorf("events: %q", events)
			}
		})
	}
}

// A driver that wants to be asked again is, and others are not.
func TestRepublishes(t *testing.T) {
	for _, again := range []bool{true, false} {
		n := newNode(t)
		m, _ := n.new()
		answer := fmt.Sprintf(`{"kind":"CSIDriver","apiVersion":"storage.k8s.io/v1","metadata":{"name":"d"},"spec":{"attachRequired":false,"requiresRepublish":%t,"tokenRequests":[{"audience":"a"}]}}`, again)
		var err error
		if m.Client, err = kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: always(answer)}); err != nil {
			t.Fatal(err)
		}
		need.Root(t)
		pod, target := podWithClaim(1), filepath.Join(n.root, "target")
		defer func() {
			for unix.Unmount(target, unix.MNT_DETACH) == nil {
			}
		}()
		asked := 0
		m.Token = func(context.Context, *corev1.Pod, string, *int64) (string, time.Time, error) {
			asked++
			return "token", time.Now(), nil
		}
		for range 2 {
			if err := m.Refresh(t.Context(), pod, volume.Spec{Name: "pv", PV: n.pv}, target, false); err != nil {
				t.Fatal(err)
			}
		}
		want := 0
		if again {
			want = 2
		}
		if got := strings.Count(strings.Join(n.calls, ","), "publish h"); got != want || asked != want {
			t.Errorf("republish %t: %v, %d tokens", again, n.calls, asked)
		}
	}
}

// always is an API server with one answer.
type always string

func (a always) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := answers{}.RoundTrip(r)
	res.StatusCode, res.Body = http.StatusOK, readAll(string(a))
	return res, err
}
