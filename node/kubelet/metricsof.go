package kubelet

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

// runtimeOperations are the names that metrics have for calls of the runtime.
var runtimeOperations = map[string]string{
	"Version": "version", "Status": "status", "RuntimeConfig": "runtime_config", "UpdateRuntimeConfig": "update_runtime_config",
	"RunPodSandbox": "run_podsandbox", "StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox",
	"PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox", "PodSandboxStats": "podsandbox_stats",
	"ListPodSandboxStats": "list_podsandbox_stats", "UpdatePodSandboxResources": "update_podsandbox_resources", "PortForward": "port_forward",
	"CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container",
	"RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status",
	"UpdateContainerResources": "update_container", "ReopenContainerLog": "reopen_container_log", "ContainerStats": "container_stats",
	"ListContainerStats": "list_container_stats", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach",
	"CheckpointContainer": "checkpoint_container", "ListImages": "list_images", "ImageStatus": "image_status", "PullImage": "pull_image", "RemoveImage": "remove_image", "ImageFsInfo": "image_fs_info",
}

// counted counts every call to the runtime.
type counted struct {
	grpc.ClientConnInterface
	*metrics
}

// Invoke makes one call.
func (c counted) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	began := time.Now()
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	took := time.Since(began).Seconds()
	name := runtimeOperations[method[strings.LastIndexByte(method, '/')+1:]]
	if name == "" {
		return err
	}
	c.runtimeCalls.WithLabelValues(name).Inc()
	c.runtimeTook.WithLabelValues(name).Observe(took)
	if err != nil {
		c.runtimeErrors.WithLabelValues(name).Inc()
	}
	if q, ok := args.(*cri.RunPodSandboxRequest); ok {
		c.podsStarted.Inc()
		c.sandboxTook.WithLabelValues(q.RuntimeHandler).Observe(took)
		users := q.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
		own := users != nil && users.Mode == cri.NamespaceMode_POD
		if own {
			c.usersStarted.Inc()
		}
		if err != nil {
			c.podsFailed.Inc()
			if own {
				c.usersFailed.Inc()
			}
			c.sandboxErrors.WithLabelValues(q.RuntimeHandler).Inc()
		}
	}
	return err
}

// containerTypes are the names that metrics have for kinds of containers.
var containerTypes = map[podspec.ContainerKind]string{
	podspec.InitContainer: "init_container", podspec.EphemeralContainer: "ephemeral_container",
}

// started counts a container that was to be started.
func (m *metrics) started(pod *corev1.Pod, name string, err error) {
	_, kind := podspec.FindContainer(pod, name)
	of := containerTypes[kind]
	if of == "" {
		of = "container"
	}
	m.containersStarted.WithLabelValues(of).Inc()
	if err != nil {
		code := status.Code(err).String()
		if e := (waitError{}); errors.As(err, &e) {
			code = e.reason
		}
		m.containersFailed.WithLabelValues(of, code).Inc()
	}
}

// rejectionReasons are those that rejections are counted by; pods decide what others say.
var rejectionReasons = map[string]bool{
	"AppArmor": true, "PodOSSelectorNodeLabelDoesNotMatch": true, "PodOSNotSupported": true, "SupplementalGroupsPolicyNotSupported": true,
	"UnexpectedAdmissionError": true, "OutOfcpu": true, "OutOfmemory": true, "OutOfephemeral-storage": true, "OutOfpods": true,
	"PodFeatureUnsupported": true, "Evicted": true, "SysctlForbidden": true, "TopologyAffinityError": true, "NodeShutdown": true,
	"VolumeAttachmentLimitExceeded": true,
}

// rejected counts a pod that was not admitted.
func (m *metrics) rejected(reason string) {
	switch {
	case rejectionReasons[reason]:
	case strings.HasPrefix(reason, "OutOf"):
		reason = "OutOfExtendedResources"
	default:
		reason = "Other"
	}
	m.rejections.WithLabelValues(reason).Inc()
}

// countUsersFailed counts a pod with users of its own, once for each of its sandboxes, whose
// container could not be started the first time: that is where most of what is wrong
// with these users shows.
func (w *worker) countUsersFailed(pod *corev1.Pod, sandbox string, attempt uint32) {
	if u := pod.Spec.HostUsers; u == nil || *u || attempt > 0 || w.usersFailed == sandbox {
		return
	}
	w.usersFailed = sandbox
	w.k.metrics.usersFailed.Inc()
}

// terminated counts the containers that a status says have ended, and the one before did not.
func (m *metrics) terminated(was, is *corev1.PodStatus) {
	if was == nil {
		was = &corev1.PodStatus{}
	}
	count := func(kind string, was, is []corev1.ContainerStatus) {
		for i := range is {
			end := is[i].State.Terminated
			if end == nil || slices.ContainsFunc(was, func(s corev1.ContainerStatus) bool { return s.Name == is[i].Name && s.State.Terminated != nil }) {
				continue
			}
			m.containersTerminated.WithLabelValues(kind, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	}
	count(containerTypes[podspec.InitContainer], was.InitContainerStatuses, is.InitContainerStatuses)
	count("container", was.ContainerStatuses, is.ContainerStatuses)
	count(containerTypes[podspec.EphemeralContainer], was.EphemeralContainerStatuses, is.EphemeralContainerStatuses)
}

// running observes how long a pod took to run, once, if this kubelet saw it before.
func (w *worker) running(s *corev1.PodStatus) {
	if w.timed || s.Phase != corev1.PodRunning {
		return
	}
	w.timed = true
	w.k.metrics.podStart.Observe(time.Since(w.startedAt).Seconds())
}

// relisted observes that all pods are listed anew.
func (m *metrics) relisted(last *time.Time, now time.Time) {
	m.lastRelist.Set(float64(now.UnixNano()) / 1e9)
	if last != nil {
		m.relist.Observe(now.Sub(*last).Seconds())
	}
}

// knownPaths are what requests are counted by; others are counted together: there is no
// end to what can be asked for.
var knownPaths = []string{"metrics/cadvisor", "metrics/probes", "metrics/resource", "metrics", "pods", "runningpods", "stats", "containerLogs",
	"exec", "attach", "portForward", "run", "healthz", "configz", "flagz", "statusz", "logs"}

var knownMethods = map[string]bool{"GET": true, "HEAD": true, "POST": true, "PUT": true, "PATCH": true, "DELETE": true, "OPTIONS": true}

// requestLabels are the labels a request is counted with. Pure.
func requestLabels(r *http.Request) []string {
	method, path := r.Method, "other"
	if !knownMethods[method] {
		method = "other"
	}
	at := strings.TrimPrefix(r.URL.Path, "/")
	for _, known := range knownPaths {
		if at == known || strings.HasPrefix(at, known+"/") {
			path = known
			break
		}
	}
	long := path == "exec" || path == "attach" || path == "portForward" || path == "containerLogs" && r.URL.Query().Get("follow") != ""
	return []string{method, path, "readwrite", yesNo(long)}
}

// count counts the requests that next answers.
func (m *metrics) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		labels, began := requestLabels(r), time.Now()
		m.requests.WithLabelValues(labels...).Inc()
		m.inFlight.WithLabelValues(labels...).Inc()
		defer func() {
			m.inFlight.WithLabelValues(labels...).Dec()
			m.requestTook.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(w, r)
	})
}

// podResources counts a request for the resources of pods; of the API's first version only
// that there was one.
func (m *metrics) podResources(version, method string, failed bool) {
	m.endpointRequests[""].WithLabelValues(version).Inc()
	if method == "" {
		return
	}
	m.endpointRequests[method].WithLabelValues(version).Inc()
	if failed {
		m.endpointErrors[method].WithLabelValues(version).Inc()
	}
}

// shutdownTimes notes when a shutdown of the node began and when its pods had ended.
func (m *metrics) shutdownTimes(began, ended time.Time) {
	seconds := func(t time.Time) float64 {
		if t.IsZero() {
			return 0
		}
		return float64(t.UnixNano()) / 1e9
	}
	m.shutdownBegan.Set(seconds(began))
	m.shutdownEnded.Set(seconds(ended))
}
