package localstorage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"knarr/addons/localstorage/disk"
	"knarr/addons/localstorage/driver"
)

// answers is a driver that has so much room, and may be unable to make volumes larger.
type answers struct {
	csipb.ControllerClient
	free     int64
	wrong    error // what is wrong with every class
	expand   error
	expanded int   // volumes that were to be made larger
	most     int64 // what they have after that at most; 0: what is asked for
}

func (a *answers) GetCapacity(context.Context, *csipb.GetCapacityRequest, ...grpc.CallOption) (*csipb.GetCapacityResponse, error) {
	return &csipb.GetCapacityResponse{AvailableCapacity: a.free}, a.wrong
}

func (a *answers) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csipb.ControllerExpandVolumeResponse, error) {
	a.expanded++
	size := r.CapacityRange.RequiredBytes
	if a.most > 0 {
		size = min(size, a.most)
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: size}, a.expand
}

// provisioner is that of a node, called by the test alone.
func (w *world) provisioner(node string, calls *answers) *provisioner {
	w.t.Helper()
	store, err := disk.Open(w.ctx, w.storage(node))
	w.must(err)
	w.t.Cleanup(func() { store.Close() })
	return &provisioner{
		client: w.admin, calls: calls, store: store, changed: make(chan struct{}, 1), events: record.NewFakeRecorder(100),
		node:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}}},
		volumes: cache.NewSharedIndexInformer(nil, &corev1.PersistentVolume{}, 0, cache.Indexers{}),
	}
}

// bound is a claim with a volume on a node, which w's test made by hand.
func (w *world) bound(p *provisioner, name, node string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := w.claim(name, node)
	pv := volumeFor(c, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ClassName}, Provisioner: Provisioner}, &csipb.Volume{
		VolumeId: name, CapacityBytes: 20 << 20, AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{corev1.LabelHostname: node}}},
	}, "")
	_, err := w.admin.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{})
	w.must(err)
	c, pv = w.bind(c)
	w.must(p.volumes.GetStore().Add(pv))
	return c
}

// TestElect: a node takes a claim that may be anywhere if it can make its volume:
// its source is here, and the size that it would get.
func TestElect(t *testing.T) {
	w := newWorld(t)
	p := w.provisioner("one", nil)
	w.bound(p, "here", "one")
	w.bound(p, "there", "two")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: Provisioner, Parameters: map[string]string{"limit": "none"}}
	for _, tt := range []struct {
		name, size, from string
		free             int64
		taken            bool
	}{
		{"fits", "8192", "", 8192, true},
		{"large", "8193", "", 8192, false},
		{"rounded", "8191", "", 8191, false},
		{"copy-here", "20Mi", "here", 1 << 30, true},
		{"copy-there", "20Mi", "there", 1 << 30, false},
	} {
		c := w.claim(tt.name, "", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Spec.Resources.Requests[storage] = new("now"), resource.MustParse(tt.size)
			if tt.from != "" {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: tt.from}
			}
		})
		c.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) // the election's delay is over
		p.calls = &answers{free: tt.free}
		again, err := p.elect(w.ctx, c, class)
		w.must(err)
		if !tt.taken && again > 0 && again <= sourcePeriod+refusalSpread*electionSpread {
			again = capacityPeriod // it waits to see whether another node takes the claim
		}
		c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, c.Name, metav1.GetOptions{})
		w.must(err)
		if taken := c.Annotations[volume.AnnSelectedNode] == "one"; taken != tt.taken || !taken && again != capacityPeriod {
			t.Errorf("%s: taken %t, again in %s", tt.name, taken, again)
		}
	}
}

// TestRefuse: that no node takes a claim is said once, by one of them; not before all
// have had their chance, and not if one of them took it. What is wrong with the class is
// said at once.
func TestRefuse(t *testing.T) {
	w := newWorld(t)
	small, large := &answers{free: 4096}, &answers{free: 1 << 40}
	nodes := []*provisioner{w.provisioner("one", small), w.provisioner("two", small), w.provisioner("three", small)}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "now", UID: "class"}, Provisioner: Provisioner, Parameters: map[string]string{"limit": "none"}}
	claim := func(name string) *corev1.PersistentVolumeClaim {
		c := w.claim(name, "", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Spec.Resources.Requests[storage] = new("now"), resource.MustParse("8193")
		})
		c.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) // the election's delay is over
		return c
	}
	// reported are the messages on a claim.
	reported := func(c *corev1.PersistentVolumeClaim) (messages []string) {
		all, err := w.admin.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{})
		w.must(err)
		for i := range all.Items {
			if e := &all.Items[i]; e.InvolvedObject.UID == c.UID {
				if e.Type != corev1.EventTypeWarning || e.Reason != "ProvisioningFailed" || e.Source.Component == "" || e.Count != 1 || e.InvolvedObject.Kind != "PersistentVolumeClaim" {
					t.Errorf("%+v", e)
				}
				messages = append(messages, e.Message)
			}
		}
		return messages
	}
	later := func(c *corev1.PersistentVolumeClaim, after time.Duration, nodes ...*provisioner) {
		for _, p := range nodes {
			again, err := p.refuse(w.ctx, c, class, errors.New("no room"), gracePeriod, time.Now().Add(after))
			w.must(err)
			if again != capacityPeriod && again != 0 {
				t.Errorf("%s: again in %s", p.node.Name, again)
			}
		}
	}
	over := gracePeriod + refusalSpread*electionSpread

	big := claim("big")
	for _, p := range nodes {
		again, err := p.elect(w.ctx, big, class)
		w.must(err)
		if again < time.Second || again > over {
			t.Errorf("%s looks again in %s", p.node.Name, again)
		}
	}
	if got := reported(big); len(got) != 0 {
		t.Errorf("before others had their chance: %q", got)
	}
	later(big, over, nodes...)
	later(big, over+capacityPeriod, nodes...)
	if got := reported(big); len(got) != 1 || got[0] != `failed to provision volume with StorageClass "now": no room` {
		t.Errorf("said %q", got)
	}
	later(big, over+2*refusalPeriod, nodes...) // the API server keeps the event in this test
	if got := reported(big); len(got) != 1 {
		t.Errorf("an hour later: %q", got)
	}

	fits := claim("fits")
	nodes[2].calls = large
	for _, p := range nodes {
		_, err := p.elect(w.ctx, fits, class)
		w.must(err)
	}
	later(fits, over, nodes[:2]...) // with a cache that is behind
	if got := reported(fits); len(got) != 0 {
		t.Errorf("a claim that a node took: %q", got)
	}

	wrong := claim("wrong")
	for _, p := range nodes {
		p.calls = &answers{wrong: status.Error(codes.InvalidArgument, `Parameter "x" is not supported`)}
		again, err := p.elect(w.ctx, wrong, class)
		w.must(err)
		if again != capacityPeriod {
			t.Errorf("again in %s", again)
		}
	}
	if got := reported(wrong); len(got) != 1 || got[0] != `failed to provision volume with StorageClass "now": rpc error: code = InvalidArgument desc = Parameter "x" is not supported` {
		t.Errorf("said %q", got)
	}
}

// TestSourceElsewhere: a claim that is a copy says which node it waits for, once that one
// has had time to take it.
func TestSourceElsewhere(t *testing.T) {
	w := newWorld(t)
	p := w.provisioner("one", &answers{free: 1 << 30})
	w.bound(p, "there", "two")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "now", UID: "class"}, Provisioner: Provisioner, Parameters: map[string]string{"limit": "none"}}
	c := w.claim("copy", "", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = new("now")
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "there"}
	})
	c.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) // the election's delay is over
	again, err := p.elect(w.ctx, c, class)
	w.must(err)
	if again < sourcePeriod-time.Minute || again > sourcePeriod+refusalSpread*electionSpread {
		t.Errorf("looks again in %s", again)
	}
	p.refusals.all[c.UID].first = time.Now().Add(-sourcePeriod - refusalSpread*electionSpread)
	again, err = p.elect(w.ctx, c, class)
	w.must(err)
	if again != capacityPeriod {
		t.Errorf("looks again in %s", again)
	}
	w.event("copy", "ProvisioningFailed", "is on node two and can be copied there alone: the claim waits for that node")
}

// slowCopies is a driver whose copies take until they are let go.
type slowCopies struct {
	answers
	mu             sync.Mutex
	underway, most int
	started        int
	end            chan struct{}
}

func (s *slowCopies) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest, _ ...grpc.CallOption) (*csipb.CreateVolumeResponse, error) {
	if r.VolumeContentSource != nil {
		s.mu.Lock()
		s.started, s.underway = s.started+1, s.underway+1
		s.most = max(s.most, s.underway)
		s.mu.Unlock()
		defer func() { s.mu.Lock(); s.underway--; s.mu.Unlock() }()
		select {
		case <-s.end:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: r.Name, CapacityBytes: r.CapacityRange.RequiredBytes, AccessibleTopology: r.AccessibilityRequirements.Requisite,
	}}, nil
}

func (s *slowCopies) DeleteVolume(context.Context, *csipb.DeleteVolumeRequest, ...grpc.CallOption) (*csipb.DeleteVolumeResponse, error) {
	return &csipb.DeleteVolumeResponse{}, nil
}

// TestCopiesLeaveRoom: while copies take long, other volumes are made and removed. Of one
// namespace there are so many at once, and each has its turn.
func TestCopiesLeaveRoom(t *testing.T) {
	const many = 3 * workers
	w := newWorld(t)
	p := w.provisioner("one", nil)
	slow := &slowCopies{answers: answers{free: 1 << 40}, end: make(chan struct{})}
	f := informers.NewSharedInformerFactory(w.admin, 0)
	p.calls, p.claims, p.volumes = slow, f.Core().V1().PersistentVolumeClaims().Informer(), f.Core().V1().PersistentVolumes().Informer()
	p.classes, p.capacities = f.Storage().V1().StorageClasses().Informer(), f.Storage().V1().CSIStorageCapacities().Informer()
	p.events = record.NewFakeRecorder(1000)
	w.bound(p, "source", "one")
	var volumes []string
	for i := range many {
		volumes = append(volumes, volumeName(w.claim(fmt.Sprint("copy", i), "one", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
		})))
	}
	loops := p.controllers()
	f.StartWithContext(w.ctx)
	for name, loop := range loops {
		w.parts.Go(name, func() { _ = loop(w.ctx) })
	}
	copying := func() (started, most int) {
		slow.mu.Lock()
		defer slow.mu.Unlock()
		return slow.started, slow.most
	}
	w.await("copies", func() bool { started, _ := copying(); return started >= share })
	c, pv := w.bind(w.claim("plain", "one"))
	w.releaseClaim(c)
	w.gone(pv.Name)
	close(slow.end)
	w.await("all copies", func() bool {
		return !slices.ContainsFunc(volumes, func(name string) bool { return p.volume(name) == nil })
	})
	if _, most := copying(); most > share {
		t.Errorf("%d copies at once, of one namespace %d may be", most, share)
	}
}

// TestShares: what waits has its turn when something of its own namespace has ended.
func TestShares(t *testing.T) {
	var s shares
	var again []string
	s.add = func(key cache.ObjectName) { again = append(again, key.Name) }
	take := func(namespace, name string, want bool) {
		t.Helper()
		if got := s.take(namespace, cache.ObjectName{Namespace: namespace, Name: name}); got != want {
			t.Errorf("%s/%s: %v", namespace, name, got)
		}
	}
	for range share {
		take("a", "first", true)
	}
	take("a", "second", false)
	take("b", "first", true)
	s.give("b")
	if len(again) > 0 {
		t.Errorf("looked at %v", again)
	}
	s.give("a")
	if len(again) != 1 || again[0] != "second" {
		t.Errorf("looked at %v", again)
	}
	take("a", "second", true)

	again = nil
	for i := range 100 {
		take("a", fmt.Sprint(i), false)
	}
	if s.give("a"); len(again) != 1 {
		t.Errorf("%d are looked at when one has ended", len(again))
	}
	for range share - 1 { // the one that was looked at is gone
		s.give("a")
	}
	if len(again) != 100 {
		t.Errorf("%d are looked at when all have ended", len(again))
	}
	if len(s.busy)+len(s.waiting) > 0 {
		t.Errorf("left: %v, %v", s.busy, s.waiting)
	}
}

// TestSnapshotHandle: a snapshot is restored on the node whose sidecar took it.
func TestSnapshotHandle(t *testing.T) {
	content := func(edit func(*snapshotContent)) *snapshotContent {
		c := &snapshotContent{}
		c.Spec.Driver, c.Status.SnapshotHandle = driver.Name, "handle"
		ref := &c.Spec.VolumeSnapshotRef
		ref.Namespace, ref.Name, ref.UID = "ns", "s", "uid"
		edit(c)
		return c
	}
	on := func(node string) func(*snapshotContent) {
		return func(c *snapshotContent) { c.Metadata.Labels = map[string]string{snapshotNode: node} }
	}
	for name, tt := range map[string]struct {
		content *snapshotContent
		want    string // or what the error has
		code    codes.Code
	}{
		"here":           {content(on("one")), "handle", codes.OK},
		"nobody says":    {content(func(*snapshotContent) {}), "handle", codes.OK},
		"on another":     {content(on("two")), "the snapshot s is on node two and can be copied there alone", codes.ResourceExhausted},
		"another's":      {content(func(c *snapshotContent) { c.Spec.VolumeSnapshotRef.UID = "other" }), "not bound to its content", codes.Unknown},
		"another name's": {content(func(c *snapshotContent) { c.Spec.VolumeSnapshotRef.Name = "other" }), "not bound to its content", codes.Unknown},
		"another tenant": {content(func(c *snapshotContent) { c.Spec.VolumeSnapshotRef.Namespace = "other" }), "not bound to its content", codes.Unknown},
		"another driver": {content(func(c *snapshotContent) { c.Spec.Driver = "d" }), "is of driver d", codes.Unknown},
		"not taken":      {content(func(c *snapshotContent) { c.Status.SnapshotHandle = "" }), "has no handle", codes.Unknown},
	} {
		got, err := tt.content.handle("ns", "s", "uid", "one")
		if err != nil {
			got = err.Error()
		}
		if status.Code(err) != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestSnapshotNames: a data source's name, which may have any characters, leads to no
// object of another namespace or kind.
func TestSnapshotNames(t *testing.T) {
	w := newWorld(t)
	p := w.provisioner("one", &answers{free: 1 << 30})
	for _, name := range []string{"../../victim/volumesnapshots/s", "..", "s/../../x", ""} {
		if id, err := p.snapshot(w.ctx, "mine", name); err == nil || !strings.Contains(err.Error(), "invalid name") {
			t.Errorf("%q: %q, %v", name, id, err)
		}
	}
}

// TestRefusals: what is no longer refused is forgotten.
func TestRefusals(t *testing.T) {
	var r refusals
	now := time.Unix(0, 0)
	r.note("gone", time.Minute, now)
	if wait, reported := r.note("a", time.Minute, now); wait != time.Minute || reported {
		t.Errorf("first: %s, %t", wait, reported)
	}
	now = now.Add(time.Minute)
	if wait, reported := r.note("a", time.Minute, now); wait != 0 || reported {
		t.Errorf("later: %s, %t", wait, reported)
	}
	r.done("a", now)
	now = now.Add(refusalPeriod - 1)
	if _, reported := r.note("a", time.Minute, now); !reported {
		t.Error("reported, and forgotten")
	}
	now = now.Add(1)
	if _, reported := r.note("a", time.Minute, now); reported {
		t.Error("the event has gone, and nobody says it again")
	}
	r.note("b", time.Minute, now)
	if len(r.all) != 2 {
		t.Errorf("%d are remembered", len(r.all))
	}
	r.forget("a")
	if wait, _ := r.note("a", time.Minute, now); wait != time.Minute {
		t.Errorf("a claim that was taken and given back: %s", wait)
	}
}

// TestResizeWithoutEffect: a driver that says a volume has its size, which is not what is
// asked for, has failed: the claim would be written for ever.
func TestResizeWithoutEffect(t *testing.T) {
	w := newWorld(t)
	p := w.provisioner("one", &answers{most: 20 << 20})
	c := w.bound(p, "small", "one")
	c.Spec.Resources.Requests[storage] = resource.MustParse("1e30")
	c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	if _, err := p.resize(w.ctx, c); status.Code(err) != codes.OutOfRange {
		t.Errorf("%v", err)
	}
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, c.Name, metav1.GetOptions{})
	w.must(err)
	if got := c.Status.AllocatedResourceStatuses[storage]; got != corev1.PersistentVolumeClaimControllerResizeInfeasible {
		t.Errorf("%+v", c.Status)
	}
}

func TestBytesOf(t *testing.T) {
	for text, want := range map[string]int64{"20Mi": 20 << 20, "0.5": 1, "8Ei": math.MaxInt64, "9223372036854775808": math.MaxInt64, "1e30": math.MaxInt64} {
		if got := bytesOf(resource.MustParse(text)); got != want {
			t.Errorf("%s: %d", text, got)
		}
	}
}

// TestResizeOfTheNode: while the kubelet grows a volume, or has refused to, the claim is its
// own to write.
func TestResizeOfTheNode(t *testing.T) {
	w := newWorld(t)
	for _, state := range []corev1.ClaimResourceStatus{corev1.PersistentVolumeClaimNodeResizeInProgress, corev1.PersistentVolumeClaimNodeResizeInfeasible} {
		name := strings.ToLower(string(state))
		calls := &answers{}
		p := w.provisioner(name, calls)
		c := w.bound(p, name, name)
		c.Spec.Resources.Requests[storage] = resource.MustParse("30Mi")
		c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
		w.must(err)
		c.Status.AllocatedResources = corev1.ResourceList{storage: resource.MustParse("30Mi")}
		c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{storage: state}
		c, err = w.admin.CoreV1().PersistentVolumeClaims("default").UpdateStatus(w.ctx, c, metav1.UpdateOptions{})
		w.must(err)
		if again, err := p.resize(w.ctx, c); again != 0 || err != nil || calls.expanded != 0 {
			t.Errorf("%s: again in %v, %v; made larger %d times", state, again, err, calls.expanded)
		}
		c.Spec.Resources.Requests[storage] = resource.MustParse("40Mi")
		c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
		w.must(err)
		if _, err := p.resize(w.ctx, c); err != nil || calls.expanded != 1 {
			t.Errorf("%s: another size: %v; made larger %d times", state, err, calls.expanded)
		}
	}
}

// TestResizeOnce: a claim that has its size is let be while its volume is an older one in
// the cache.
func TestResizeOnce(t *testing.T) {
	c, v := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	c.UID, c.Status.Phase = "u", corev1.ClaimBound
	v.Spec.ClaimRef = &corev1.ObjectReference{UID: "u"}
	size := func(s string) corev1.ResourceList { return corev1.ResourceList{storage: resource.MustParse(s)} }
	c.Spec.Resources.Requests, c.Status.Capacity, v.Spec.Capacity = size("2Gi"), size("1Gi"), size("1Gi")
	if !wants(c, v) {
		t.Error("larger than it is")
	}
	if c.Status.Capacity = size("2Gi"); wants(c, v) {
		t.Error("it has its size")
	}
}

// TestResizeFails: a claim that cannot grow says so once, whatever the words are,
// and is looked at again later.
func TestResizeFails(t *testing.T) {
	w := newWorld(t)
	api := w.admin.CoreV1().PersistentVolumeClaims("default")
	for _, tt := range []struct {
		name  string
		code  codes.Code
		state corev1.ClaimResourceStatus
		again time.Duration // 0 for a growing one
	}{
		{"infeasible", codes.OutOfRange, corev1.PersistentVolumeClaimControllerResizeInfeasible, 0},
		{"full", codes.ResourceExhausted, corev1.PersistentVolumeClaimControllerResizeInProgress, capacityPeriod},
		{"broken", codes.Internal, corev1.PersistentVolumeClaimControllerResizeInProgress, 0},
	} {
		calls := &answers{}
		p := w.provisioner(tt.name, calls)
		c := w.bound(p, tt.name, tt.name)
		grow := func(size string) {
			c.Spec.Resources.Requests[storage] = resource.MustParse(size)
			var err error
			c, err = api.Update(w.ctx, c, metav1.UpdateOptions{})
			w.must(err)
		}
		try := func(words string) {
			calls.expand = status.Error(tt.code, words)
			again, err := p.resize(w.ctx, c)
			if again != tt.again || (tt.again == 0) != errors.Is(err, calls.expand) {
				t.Errorf("%s: again in %s, %v", tt.name, again, err)
			}
			c, err = api.Get(w.ctx, c.Name, metav1.GetOptions{})
			w.must(err)
		}
		grow("30Mi")
		try("1 can be had")
		if got := c.Status.AllocatedResourceStatuses[storage]; got != tt.state || len(c.Status.Conditions) != 1 || !isResizeError(c.Status.Conditions[0]) {
			t.Errorf("%s: %+v", tt.name, c.Status)
		}
		written := c.ResourceVersion
		try("2 can be had")
		if c.ResourceVersion != written {
			t.Errorf("%s: written again: %+v", tt.name, c.Status)
		}
		grow("40Mi")
		try("3 can be had")
		if got := c.Status.AllocatedResources[storage]; got.String() != "40Mi" || len(c.Status.Conditions) != 1 || c.Status.Conditions[0].Message != calls.expand.Error() {
			t.Errorf("%s: another size: %+v", tt.name, c.Status)
		}
	}
}

// TestNotEnforced: the reason is in the words.
func TestNotEnforced(t *testing.T) {
	missing := errors.New("mkfs.ext4 is not installed; install e2fsprogs")
	for _, c := range []struct {
		copied bool
		images error
		want   string
	}{
		{true, missing, "its source's size is not enforced either"},
		{false, nil, "node one had no project quotas, and no images, when it was made"},
		{false, missing, "node one has no project quotas, and no images: mkfs.ext4 is not installed; install e2fsprogs (knarr check says more)"},
	} {
		if got := notEnforced("one", c.copied, c.images); got != c.want {
			t.Error(got)
		}
	}
}

// TestResizeSeenLate: a claim that has its new size is left alone while only the cache does
// not know yet that its volume has it too; one whose provisioner ended before it said so is
// told.
func TestResizeSeenLate(t *testing.T) {
	w := newWorld(t)
	calls := &answers{free: 1 << 40}
	p := w.provisioner("one", calls)
	c := w.bound(p, "data", "one")
	c.Spec.Resources.Requests[storage] = resource.MustParse("30Mi")
	c, err := w.admin.CoreV1().PersistentVolumeClaims("default").Update(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	resize := func() {
		t.Helper()
		if again, err := p.resize(w.ctx, c); again != 0 || err != nil {
			t.Errorf("again in %v, %v", again, err)
		}
		c, err = w.admin.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "data", metav1.GetOptions{})
		w.must(err)
		if calls.expanded != 1 || c.Status.Capacity.Storage().String() != "30Mi" || len(c.Status.Conditions)+len(c.Status.AllocatedResourceStatuses) > 0 {
			t.Errorf("made larger %d times; claim %+v", calls.expanded, c.Status)
		}
	}
	resize()
	version := c.ResourceVersion
	resize() // the cache has the old volume
	if c.ResourceVersion != version {
		t.Error("the claim was written again")
	}
	c.Status = resizing(c).Status
	c, err = w.admin.CoreV1().PersistentVolumeClaims("default").UpdateStatus(w.ctx, c, metav1.UpdateOptions{})
	w.must(err)
	calls.expanded = 0
	resize()
}
