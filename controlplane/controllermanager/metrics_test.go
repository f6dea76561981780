package controllermanager

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"knarr/internal/runningcontrollers"
)

// counted is what the process counts under a name with these values of labels.
func counted(t *testing.T, name string, values ...string) (n float64) {
	t.Helper()
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			if !slices.ContainsFunc(values, func(v string) bool {
				return !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == v })
			}) {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return n
}

// TestMetricsOfJobs: a CronJob's Job, its pods and its end are counted once each.
func TestMetricsOfJobs(t *testing.T) {
	inCluster(t, []string{"cronjob-controller", "job-controller", "serviceaccount-controller"}, func(c *cluster) {
		const done = "job_controller_jobs_finished_total"
		finished := counted(t, done, "succeeded", "CompletionsReached", "NonIndexed")
		pods := counted(t, "job_controller_job_pods_finished_total", "succeeded", "NonIndexed")
		syncs := counted(t, "job_controller_job_syncs_total", "success", "pods_created")
		made := counted(t, "job_controller_job_pods_creation_total", "new", "succeeded")
		skews := counted(t, "cronjob_controller_job_creation_skew_duration_seconds")
		cron := &batchv1.CronJob{ObjectMeta: meta("counted"), Spec: batchv1.CronJobSpec{Schedule: "0 * * * *"}}
		cron.Spec.JobTemplate.Spec.Completions, cron.Spec.JobTemplate.Spec.Parallelism = new(int32(3)), new(int32(1))
		cron.Spec.JobTemplate.Spec.Template.Spec = *template.Spec.DeepCopy()
		cron.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err := c.client.BatchV1().CronJobs("default").Create(c.ctx, cron, metav1.CreateOptions{})
		c.no(err)
		time.Sleep(time.Hour + time.Second)
		for range 3 {
			c.finish(func(*corev1.Pod) int32 { return 0 })
			time.Sleep(time.Minute)
		}
		for what, n := range map[string][2]float64{
			"jobs that finished":    {counted(t, done, "succeeded", "CompletionsReached", "NonIndexed") - finished, 1},
			"pods that finished":    {counted(t, "job_controller_job_pods_finished_total", "succeeded", "NonIndexed") - pods, 3},
			"pods that were made":   {counted(t, "job_controller_job_pods_creation_total", "new", "succeeded") - made, 3},
			"looks that made a pod": {counted(t, "job_controller_job_syncs_total", "success", "pods_created") - syncs, 3},
			"jobs of the CronJob":   {counted(t, "cronjob_controller_job_creation_skew_duration_seconds") - skews, 1},
		} {
			if n[0] != n[1] {
				t.Errorf("%s: %v, want %v", what, n[0], n[1])
			}
		}
	})
}

// TestMetricsOfFailurePolicy: a failed pod is counted once, by the action of the rule that
// it matched.
func TestMetricsOfFailurePolicy(t *testing.T) {
	inCluster(t, []string{"job-controller", "serviceaccount-controller"}, func(c *cluster) {
		const name, ended = "job_controller_pod_failures_handled_by_failure_policy_total", "job_controller_terminated_pods_tracking_finalizer_total"
		before, added, deleted := counted(t, name, "FailJob"), counted(t, ended, "add"), counted(t, ended, "delete")
		job := &batchv1.Job{ObjectMeta: meta("policy"), Spec: batchv1.JobSpec{PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3}}}}}}}
		job.Spec.Template.Spec = *template.Spec.DeepCopy()
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		_, err := c.client.BatchV1().Jobs("default").Create(c.ctx, job, metav1.CreateOptions{})
		c.no(err)
		time.Sleep(time.Minute)
		c.finish(func(*corev1.Pod) int32 { return 3 })
		time.Sleep(time.Minute)
		if n := counted(t, name, "FailJob") - before; n != 1 {
			t.Errorf("%v pods handled, want 1", n)
		}
		if a, d := counted(t, ended, "add")-added, counted(t, ended, "delete")-deleted; a != 1 || d != 1 {
			t.Errorf("%v pods ended with the finalizer, %v lost it", a, d)
		}
	})
}

// TestMetricsNames: names and labels are upstream's.
func TestMetricsNames(t *testing.T) {
	b, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "#") {
			want = append(want, strings.TrimSpace(line))
		}
	}
	var got []string
	for _, of := range metrics {
		for _, c := range of() {
			got = append(got, describe(c)...)
		}
	}
	got = append(got, describe(runningcontrollers.Metric())...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// describe is the name and the labels of what a collector collects.
func describe(c prometheus.Collector) (lines []string) {
	all := make(chan *prometheus.Desc, 8)
	c.Describe(all)
	close(all)
	for d := range all {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, rest, _ := strings.Cut(rest, `"`)
		_, rest, _ = strings.Cut(rest, "variableLabels: {")
		labels := strings.Split(strings.TrimSuffix(rest, "}}"), ",")
		slices.Sort(labels)
		lines = append(lines, strings.TrimSpace(name+" "+strings.Join(labels, ",")))
	}
	return lines
}
