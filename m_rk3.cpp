#include <stdio.h>
#include <time.h>
int main(int argc,char**argv){ long rows=atol(argv[1]), W=256, pitch=Wavefront::padded(W+32), plane=Wavefront::padded((rows+24)*pitch), R=atol(argv[2]);
 real* mem=(real*)aligned_alloc(4096, 40*plane*sizeof(real)+65536); for(long n=0;n<40*plane;n++) mem[n]=1e-3f*(n%97);
 real sc[256]={0.1f,0.2f,0.1f,0.2f,0.1f,0.2f,0.1f,0.2f}; for(int k=0;k<256;k++) sc[k]=1e-3f;
 Place q={sc,nullptr,0}; Rows in[PLANES],out[PLANES]; const Pass& p=passes[PASSES+JOINS_STEPS-1];
 for(int n=0;n<p.planes;n++){ long off=p.plane[n].offset+5; long base=p.plane[n].input==0?20:0; in[n]={mem+(base+off)*plane+12*pitch+32,pitch}; }
 for(int n=0;n<p.outputs*p.at_once;n++) out[n]={mem+(28+n)*plane+12*pitch+32,pitch};
 double best=1e9; for(int t=0;t<30;t++){ struct timespec a,b; clock_gettime(CLOCK_THREAD_CPUTIME_ID,&a); for(long r=0;r<R;r++) for(long j=0;j<rows;j++) p.compute(q,in,out,j,j+1,0,W); clock_gettime(CLOCK_THREAD_CPUTIME_ID,&b); double s=(b.tv_sec-a.tv_sec)+1e-9*(b.tv_nsec-a.tv_nsec); if(s<best)best=s;}
 printf("%s rows %ld: %.2f ns per vector, %.0f Mcell/s\n",argv[3],rows,best*1e9/(R*rows*W/LANES*p.at_once),R*rows*W*p.at_once/best/1e6); }
