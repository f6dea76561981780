package controllermanager

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finish ends the running pods as exit says for each: 0 is success.
func (c *cluster) finish(exit func(p *corev1.Pod) int32) {
	c.Helper()
	for _, p := range c.pods() {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		code := exit(&p)
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()}}}}
		if _, err := c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, &p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			c.Fatal(err)
		}
	}
}

func TestJobs(t *testing.T) {
	fine := func(*corev1.Pod) int32 { return 0 }
	bad := func(*corev1.Pod) int32 { return 3 }
	for _, test := range []struct {
		name string
		spec batchv1.JobSpec
		exit func(*corev1.Pod) int32
		want string
	}{
		{"plain", batchv1.JobSpec{Completions: new(int32(5)), Parallelism: new(int32(2))}, fine, "Complete CompletionsReached succeeded 5 failed 0 "},
		{"queue", batchv1.JobSpec{Parallelism: new(int32(3))}, fine, "Complete CompletionsReached succeeded 3 failed 0 "},
		{"indexed", batchv1.JobSpec{Completions: new(int32(4)), Parallelism: new(int32(3)), CompletionMode: new(batchv1.IndexedCompletion)}, fine,
			"Complete CompletionsReached succeeded 4 failed 0 0-3"},
		{"failing", batchv1.JobSpec{BackoffLimit: new(int32(2))}, bad, "Failed BackoffLimitExceeded succeeded 0 failed 3 "},
		{"policy", batchv1.JobSpec{PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{3}}}}}}, bad,
			"Failed PodFailurePolicy succeeded 0 failed 1 "},
		{"deadline", batchv1.JobSpec{ActiveDeadlineSeconds: new(int64(20))}, nil, "Failed DeadlineExceeded succeeded 0 failed 1 "},
		{"per-index", batchv1.JobSpec{Completions: new(int32(2)), Parallelism: new(int32(2)), CompletionMode: new(batchv1.IndexedCompletion), BackoffLimitPerIndex: new(int32(1))},
			func(p *corev1.Pod) int32 {
				if p.Labels[batchv1.JobCompletionIndexAnnotation] == "1" {
					return 1
				}
				return 0
			}, "Failed FailedIndexes succeeded 1 failed 2 0"},
		{"success policy", batchv1.JobSpec{Completions: new(int32(3)), Parallelism: new(int32(3)), CompletionMode: new(batchv1.IndexedCompletion),
			SuccessPolicy: &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}},
			func(p *corev1.Pod) int32 {
				if p.Labels[batchv1.JobCompletionIndexAnnotation] == "0" {
					return 0
				}
				return 1
			}, "Complete SuccessPolicy"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inCluster(t, []string{"job-controller", "serviceaccount-controller", "ttl-after-finished-controller"}, func(c *cluster) {
				job := &batchv1.Job{ObjectMeta: meta("work"), Spec: test.spec}
				job.Spec.Template.Spec = *template.Spec.DeepCopy()
				job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
				job.Spec.TTLSecondsAfterFinished = new(int32(100))
				api := c.client.BatchV1().Jobs("default")
				_, err := api.Create(c.ctx, job, metav1.CreateOptions{})
				c.no(err)
				c.until("the job ends", func() (bool, error) {
					if test.exit != nil {
						c.finish(test.exit)
					}
					j, err := api.Get(c.ctx, "work", metav1.GetOptions{})
					c.no(err)
					got := ""
					for _, cond := range j.Status.Conditions {
						if cond.Type == batchv1.JobComplete || cond.Type == batchv1.JobFailed {
							got = fmt.Sprintf("%s %s", cond.Type, cond.Reason)
						}
					}
					counts := fmt.Sprintf(" succeeded %d failed %d %s", j.Status.Succeeded, j.Status.Failed, j.Status.CompletedIndexes)
					return got == test.want || got+counts == test.want, fmt.Errorf("got %s%s", got, counts)
				})
				for _, p := range c.pods() {
					if len(p.Finalizers) > 0 {
						t.Errorf("pod %s keeps %v", p.Name, p.Finalizers)
					}
				}
				time.Sleep(102 * time.Second)
				if j, err := api.Get(c.ctx, "work", metav1.GetOptions{}); err == nil && j.DeletionTimestamp == nil {
					t.Error("the job outlives its time")
				}
			})
		})
	}
}

func TestCronJob(t *testing.T) {
	inCluster(t, []string{"cronjob-controller", "job-controller", "garbage-collector-controller", "serviceaccount-controller"}, func(c *cluster) {
		cron := &batchv1.CronJob{ObjectMeta: meta("tick"), Spec: batchv1.CronJobSpec{Schedule: "*/10 * * * *", SuccessfulJobsHistoryLimit: new(int32(2))}}
		cron.Spec.JobTemplate.Spec.Template.Spec = *template.Spec.DeepCopy()
		cron.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		api := c.client.BatchV1().CronJobs("default")
		_, err := api.Create(c.ctx, cron, metav1.CreateOptions{})
		c.no(err)
		for range 5 {
			time.Sleep(10*time.Minute + time.Second)
			c.finish(func(*corev1.Pod) int32 { return 0 })
		}
		time.Sleep(time.Minute)
		jobs, err := c.client.BatchV1().Jobs("default").List(c.ctx, metav1.ListOptions{})
		c.no(err)
		got, err := api.Get(c.ctx, "tick", metav1.GetOptions{})
		c.no(err)
		s := got.Status
		if len(jobs.Items) != 2 || len(c.pods()) != 2 || len(s.Active) != 0 || s.LastSuccessfulTime == nil || s.LastScheduleTime == nil || time.Since(s.LastScheduleTime.Time) > 10*time.Minute {
			t.Errorf("%d jobs, %d pods, status %+v", len(jobs.Items), len(c.pods()), s)
		}
	})
}
