/*
 * pause keeps a pod's namespaces open: it waits for signals, reaps every child
 * that ends (it is process 1 where the pod shares its process namespace) and
 * exits when told to. It stands without a C library, so that the whole program
 * is a few kilobytes.
 */

#if defined(__x86_64__)
enum { SYS_rt_sigprocmask = 14, SYS_wait4 = 61, SYS_exit_group = 231, SYS_rt_sigtimedwait = 128 };

static long call(long n, long a, long b, long c, long d)
{
	long r;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return r;
}
#elif defined(__aarch64__)
enum { SYS_exit_group = 94, SYS_rt_sigprocmask = 135, SYS_rt_sigtimedwait = 137, SYS_wait4 = 260 };

static long call(long n, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "pause knows the system calls of amd64 and arm64 only"
#endif

enum { SIG_BLOCK = 0, SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, WNOHANG = 1 };

#define BIT(sig) (1UL << ((sig) - 1))

__attribute__((noreturn)) void _start(void)
{
	/* Blocked signals wait to be taken one at a time: no handler, no race. */
	unsigned long set = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGCHLD);
	call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof(set));
	for (;;) {
		long sig = call(SYS_rt_sigtimedwait, (long)&set, 0, 0, sizeof(set));
		if (sig == SIGINT || sig == SIGTERM)
			break;
		while (call(SYS_wait4, -1, 0, WNOHANG, 0) > 0)
			;
	}
	call(SYS_exit_group, 0, 0, 0, 0);
	__builtin_unreachable();
}
