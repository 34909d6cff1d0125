/* The smallest library there is to load: what the loading and binding tests need, and nothing of any vendor. */

void *fake_pointer(void) { return (void *)0x7F55C8099468B0; }

int fake_add(int a, int b) { return a + b; }
