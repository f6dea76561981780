package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/crilabels"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podlogs"
	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/prober"
	"knarr/node/kubelet/runtimestate"
)

// hookClient waits for as long as its request's context: a hook may take all of its pod's grace.
var hookClient = prober.Client(0)

// execSync runs a command in a container and waits for it.
func (k *Kubelet) execSync(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, int32, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		// The runtime ends the command itself; this is for one that does not.
		ctx, cancel = context.WithTimeout(ctx, timeout+2*time.Second)
		defer cancel()
	}
	res, err := k.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: int64((timeout + time.Second - 1) / time.Second)})
	if err != nil {
		return nil, 0, err
	}
	return append(res.Stdout, res.Stderr...), res.ExitCode, nil
}

// maxHookOutput bounds what an event shows of a hook's output.
const maxHookOutput = 1 << 10

// A hookExit is that the command of a hook failed. Its words hold what the command printed,
// which is its user's to read and not the log's.
type hookExit struct {
	error
	code int32
}

// loggedHook is what the log has of a hook that failed.
func loggedHook(err error) error {
	var e hookExit
	if errors.As(err, &e) {
		return fmt.Errorf("its command exited with %d", e.code)
	}
	return err
}

// hook runs a postStart or preStop handler. Its error is what the container's status has of it.
func (k *Kubelet) hook(ctx context.Context, pod *corev1.Pod, c *corev1.Container, id, ip string, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		out, code, err := k.execSync(ctx, id, h.Exec.Command, 0)
		if err == nil && code == 0 {
			return nil
		}
		out = out[:min(len(out), maxHookOutput)] // it becomes part of the pod's status
		if err != nil {
			return hookFailure("Exec", h.Exec.Command, c, pod, fmt.Errorf("%w, message: %q", err, out))
		}
		return hookExit{hookFailure("Exec", h.Exec.Command, c, pod,
			fmt.Errorf("command '%s' exited with %d: %s, message: %q", strings.Join(h.Exec.Command, " "), code, out, out)), code}
	case h.HTTPGet != nil:
		if err := k.getHook(ctx, pod, c, ip, h.HTTPGet); err != nil {
			return hookFailure("HTTP", h.HTTPGet.Path, c, pod, err)
		}
		return nil
	case h.Sleep != nil:
		t := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			k.metrics.sleepsCut.Inc()
			return hookFailure("Sleep", h.Sleep.Seconds, c, pod, errors.New("container terminated before sleep hook finished"))
		}
		return nil
	}
	return fmt.Errorf("Cannot run handler: invalid handler: %v", h) // of a socket too, as the API says
}

// hookFailure is upstream's sentence about a hook that failed.
func hookFailure(kind string, what any, c *corev1.Container, pod *corev1.Pod, err error) error {
	return fmt.Errorf("%s lifecycle hook (%v) for Container %q in Pod %q failed - error: %w", kind, what, c.Name, podspec.Format(pod), err)
}

// getHook asks the server of an HTTP hook. Whatever the answer's status: that it was asked is
// all, as upstream has it.
func (k *Kubelet) getHook(ctx context.Context, pod *corev1.Pod, c *corev1.Container, ip string, a *corev1.HTTPGetAction) error {
	req, err := prober.Request(ctx, a, c, ip, "kube-lifecycle/1.36")
	if err != nil {
		return err
	}
	res, err := hookClient.Do(req)
	if err != nil && req.URL.Scheme == "https" && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if res, err = hookClient.Do(req); err == nil {
			k.metrics.hookFallbacks.Inc()
			k.events.Event(podReference(pod), corev1.EventTypeWarning, "LifecycleHTTPFallback", fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host))
		}
	}
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 10<<10))
	return res.Body.Close()
}

const (
	maxPodMessage   = 12 << 10
	maxMessage      = 4 << 10
	maxMessageLog   = 2 << 10
	maxMessageLines = 80
)

// podMessage is how long the termination message of one container may be,
// that those of all fit into the pod's status.
func podMessage(pod *corev1.Pod) int {
	return maxPodMessage / max(len(pod.Spec.Containers)+len(pod.Spec.InitContainers)+len(pod.Spec.EphemeralContainers), 1)
}

// terminationMessage reads what a container left as its termination message: in the
// file that MessageFile made, which the container may have replaced by anything.
func (k *Kubelet) terminationMessage(c *runtimestate.Container) (string, bool) {
	path := c.Annotations[crilabels.TerminationMessagePath]
	dir := k.podFiles().messageDir(c.Labels[crilabels.PodUID], c.Name())
	for _, m := range c.Mounts {
		if m.ContainerPath != path || path == "" || filepath.Dir(m.HostPath) != dir {
			continue
		}
		b, err := podfile.Tail(dir, filepath.Base(m.HostPath), maxMessage)
		if err != nil && !os.IsNotExist(err) {
			return fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err), true
		}
		if os.IsNotExist(err) {
			return "", false // cleaned up: what the API knows stays
		}
		if len(b) > 0 {
			return string(b), true
		}
	}
	if c.Annotations[crilabels.TerminationMessagePolicy] == string(corev1.TerminationMessageFallbackToLogsOnError) && c.ExitCode != 0 && c.LogPath != "" {
		text, err := podlogs.Tail(c.LogPath, maxMessageLines, maxMessageLog)
		if err != nil {
			return fmt.Sprintf("Error on reading termination message from logs: %v", err), true
		}
		return text, true
	}
	return "", true
}
